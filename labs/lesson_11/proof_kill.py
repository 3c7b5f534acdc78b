"""Kill a process at each step of its save, and see what is left of the checkpoint.

Run it:      python labs/lesson_11/proof_kill.py
"""

import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.runtime.errors import CourseError
from shared.runtime.results import results_folder
from shared.runtime.run import run

from lesson_11.kills import Kill, Moment, Moments


@dataclass(frozen=True)
class Config:
    features: int = 300


def save_plainly(content: dict, path: Path) -> None:
    """What most scripts do. ``torch.save(content, path)`` writes the same bytes in the same place."""
    with path.open("wb") as file:  # the old checkpoint is gone from here on
        torch.save(content, file)


def save_atomically(content: dict, path: Path) -> None:
    """Write beside the old checkpoint, then put the new one in its place in a single step.

    ``os.replace`` is atomic where POSIX says so: whoever opens ``path`` finds the old file or the new one.
    It works within one file system only, so the temporary file is in the same folder.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()  # out of this process
        os.fsync(file.fileno())  # and onto the disk, before its name counts
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # the new name, too
    os.close(folder)


def die_while(save: Callable, content: dict, path: Path, moment: Moment | None) -> list[Moment]:
    """Run ``save`` in a child process that dies at ``moment``; without one, return all its moments."""
    listing = path.with_name("moments.json")
    child = os.fork()
    if child == 0:
        moments = Moments(path.parent, Kill(moment) if moment else None)
        moments.watch()
        save(content, path)
        moments.change("end of", path)
        os.write(os.open(listing, os.O_WRONLY | os.O_CREAT), json.dumps(moments.seen).encode())
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != (0 if moment is None else -signal.SIGKILL):
        raise CourseError(f"the child that should have died at {moment} ended with exit code {code}")
    if moment is not None:
        return []
    seen = json.loads(listing.read_text())
    listing.unlink()
    return [tuple(entry) for entry in seen]


def reference(step: int, cfg: Config) -> dict:
    """The checkpoint of a step: one layer, 361 kB."""
    torch.manual_seed(step)
    return {"step": step, "model": torch.nn.Linear(cfg.features, cfg.features).state_dict()}


def left_at(path: Path) -> str:
    """What a reader finds: the old checkpoint, the new one, or one that cannot be loaded."""
    try:
        return {1: "old", 2: "new"}[torch.load(path, weights_only=True)["step"]]
    except (EOFError, OSError, RuntimeError):  # which of them depends on where it was cut
        return "torn"


def kill_at_every_moment(save: Callable, folder: Path, cfg: Config) -> dict[str, list[str]]:
    """What happens at each moment of a save, and what a kill at that moment leaves."""
    path = folder / "checkpoint.pt"
    before = folder / "before.pt"
    torch.save(reference(1, cfg), before)
    new = reference(2, cfg)
    moments = die_while(save, new, path, None)
    left = []
    for moment in moments:
        path.write_bytes(before.read_bytes())  # what the last kill left beside it stays there
        die_while(save, new, path, moment)
        left.append(left_at(path))
    return {"moments": [change for change, _ in moments], "left": left}


def main(cfg: Config) -> None:
    rows = {}
    for save in (save_plainly, save_atomically):
        with tempfile.TemporaryDirectory() as folder:
            row = kill_at_every_moment(save, Path(folder).resolve(), cfg)
        counts = Counter(row["left"])
        print(f"{save.__name__}: killed at each of {len(row['moments'])} moments")
        print(f"    left are: old {counts['old']}, new {counts['new']}, torn {counts['torn']}")
        rows[save.__name__] = row
    if set(rows["save_atomically"]["left"]) != {"old", "new"}:
        raise CourseError("the atomic save must leave no torn file")
    if "torn" not in rows["save_plainly"]["left"]:
        raise CourseError("the plain save must leave a torn file")
    results_folder().mkdir(parents=True, exist_ok=True)
    (results_folder() / "proof_kill.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    run(main, Config())
