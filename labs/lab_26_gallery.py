"""The gallery: every case broken and cured in one launch, and a table by what you see.

Run it:      python labs/lab_26_gallery.py
or:          python labs/lab_26_gallery.py --write notebooks/failures.md
or:          torchrun --standalone --nproc-per-node=2 labs/lab_26_gallery.py CASE [--cured]
Written by:  notebooks/26_when_it_hangs.ipynb
"""

import os
import sys
from pathlib import Path

import lab_26_starting
import lab_26_training
import lab_26_waiting
import lab_26_wrong
import torch.distributed as dist
from lab_26_stage import ERROR, HANG, WRONG, Config, perform, rows_of

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run

PARTS = (lab_26_waiting, lab_26_starting, lab_26_training, lab_26_wrong)
CASES = [case for part in PARTS for case in part.CASES]
NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
TITLES = {
    HANG: "Nothing moves, and after the time-out an error",
    ERROR: "An error",
    WRONG: "No error, but wrong numbers",
}


def link_to(lesson: str) -> str:
    """A link to a lesson, as a file beside the notebooks sees it."""
    for path in NOTEBOOKS.glob(f"{lesson}_*.ipynb"):
        return f"[{lesson}]({path.name})"
    return lesson


def as_code(text: str) -> str:
    """``text`` in a cell of a Markdown table."""
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"


def table_of(rows: list[dict[str, str]]) -> str:
    """The gallery in Markdown, ordered by what is seen."""
    lines = []
    for see, title in TITLES.items():
        lines += ["", f"**{title}**", ""]
        lines += ["| You see | You did | Why | Cure | Lesson | Case |", "|---|---|---|---|---|---|"]
        for row in sorted((row for row in rows if row["see"] == see), key=lambda row: row["text"].lower()):
            cells = [as_code(row["text"]), row["did"], row["cause"], row["cure"]]
            cells += [link_to(row["lesson"]), as_code(row["name"])]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines[1:])


def main(cfg: Config) -> None:
    if "RANK" in os.environ:
        perform(CASES, cfg)  # one rank of one case
        return
    names = [case.name for case in CASES]
    if len(set(names)) < len(names):
        raise CourseError("two cases have the same name")
    rows = rows_of(CASES, cfg)
    for see, title in TITLES.items():
        print(f"{sum(row['see'] == see for row in rows):3} {title[0].lower()}{title[1:]}")
    print(f"{len(rows):3} failures, each provoked and each cured")
    table = table_of(rows)
    if sys.argv[1:2] == ["--write"]:
        Path(sys.argv[2]).write_text(f"# Failures by what you see\n\n{table}\n", encoding="utf-8")
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # alone, to record
    record_results("lab_26_gallery", {"rows": rows, "table": table})


if __name__ == "__main__":
    run(main, Config())
