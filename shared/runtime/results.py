"""What a lab records and its notebook loads, as JSON. Taught in lesson 00. Imports no torch by itself."""

import json
import os
import tempfile
from pathlib import Path

from shared.runtime.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]


def results_folder() -> Path:
    """Where results go: a folder of this notebook's own, or ``results/`` for a lab run by hand."""
    return Path(os.environ.get("RANK_BY_RANK_RESULTS") or ROOT / "results")


def record_results(lab: str, values: dict) -> None:
    """Write the ``values`` of every rank to one file. Collective: all ranks must call it.

    Args:
        lab: name of the lab; the file is ``LAB.WORLD_SIZE.json``.
        values: numbers, strings, lists and dicts, one dict per rank.

    A lab without a process group counts as one rank.
    """
    import torch.distributed as dist

    from shared.runtime.report import gather_on_rank_0

    if not dist.is_initialized():
        _write(lab, [values])
        return
    ranks = gather_on_rank_0(values)
    if ranks:
        _write(lab, ranks)


def _write(lab: str, ranks: list[dict]) -> None:
    """Write what each rank recorded; a reader finds the file whole or not at all."""
    folder = results_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
        json.dump({"lab": lab, "world_size": len(ranks), "ranks": ranks}, file)
    Path(file.name).replace(folder / f"{lab}.{len(ranks)}.json")


def load_results(lab: str, world_size: int) -> list[dict]:
    """Return what each rank recorded, in rank order.

    Raises:
        CourseError: the lab has not run with this world size, or a rank is missing from its record.
    """
    path = results_folder() / f"{lab}.{world_size}.json"
    if not path.is_file():
        raise CourseError(f"no results of {lab} with {world_size} rank(s): run the lab's cell first")
    ranks = json.loads(path.read_text(encoding="utf-8"))["ranks"]
    if len(ranks) != world_size or None in ranks:
        raise CourseError(f"{lab} was to record {world_size} ranks, its file holds {len(ranks)}")
    return ranks
