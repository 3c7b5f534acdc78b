"""``make run``: execute every lesson through papermill into ``runs/`` and end in a table.

Lessons run in a copy of the course, with stubs in place of answers.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import papermill
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm

from shared.tools import run_tool
from shared.tools.copies import copy_of_course, put_stubs
from shared.tools.lessons import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute all lessons through papermill.")
    parser.add_argument("--world-size", type=int, help="number of ranks, instead of each lesson's own")
    parser.add_argument("--folder", type=Path, help="where executed copies go, instead of a new one in runs/")
    options = parser.parse_args()
    parameters = {} if options.world_size is None else {"WORLD_SIZE": options.world_size}
    target = options.folder or ROOT / "runs" / f"lessons-{time.strftime('%Y-%m-%d-%H%M%S')}"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rank-by-rank-", ignore_cleanup_errors=True) as folder:
        course = copy_of_course(Path(folder) / "course")
        put_stubs(course)
        rows = executed(course, target.resolve(), parameters)
    width = max(len(name) for name, _, _ in rows)
    print(f"\n{'lesson':{width}}  seconds  state")
    for name, state, seconds in rows:
        print(f"{name:{width}}  {seconds:7.1f}  {state}")
    red = sum(state != "green" for _, state, _ in rows)
    print(f"{len(rows) - red} green, {red} red; executed copies are in {os.path.relpath(target)}/")
    return int(red > 0)


def executed(course: Path, target: Path, parameters: dict[str, int]) -> list[tuple[str, str, float]]:
    """Execute the lessons of ``course`` into ``target``; return (name, green or red, seconds) of each."""
    rows = []
    bar = tqdm(sorted((course / "notebooks").glob("[0-9]*.ipynb")), desc="lessons", unit="lesson")
    for path in bar:
        bar.set_postfix_str(path.stem)
        started = time.perf_counter()
        try:
            papermill.execute_notebook(
                str(path),
                str(target / path.name),
                parameters=parameters,
                kernel_name="python3",
                progress_bar=False,
                cwd=str(course / "notebooks"),
                extra_arguments=["--IPKernelApp.log_level=ERROR"],  # else it warns of TCP, once a lesson
            )
            state = "green"
        except (PapermillExecutionError, OSError, ValueError, RuntimeError) as error:
            text = getattr(error, "evalue", "") or str(error)
            state = f"red: {(text.splitlines() or [type(error).__name__])[0]}"
        rows.append((path.stem, state, time.perf_counter() - started))
    return rows


if __name__ == "__main__":
    run_tool(main)
