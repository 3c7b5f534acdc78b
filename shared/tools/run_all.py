"""``make run``: execute every lesson through papermill into ``runs/`` and end in a table."""

import argparse
import time
from pathlib import Path

import papermill
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm

from shared.tools import run_tool
from shared.tools.lessons import ROOT, read_lessons


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute all lessons through papermill.")
    parser.add_argument("--world-size", type=int, help="number of ranks, instead of each lesson's own")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs", help="where executed copies go")
    options = parser.parse_args()
    parameters = {} if options.world_size is None else {"WORLD_SIZE": options.world_size}
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    bar = tqdm(read_lessons(), desc="lessons", unit="lesson")
    for lesson in bar:
        bar.set_postfix_str(lesson.path.stem)
        started = time.perf_counter()
        try:
            papermill.execute_notebook(
                str(ROOT / lesson.path),
                str(options.folder / lesson.path.name),
                parameters=parameters,
                kernel_name="python3",
                progress_bar=False,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],  # else it warns of TCP, once a lesson
            )
            state = "green"
        except (PapermillExecutionError, OSError, ValueError, RuntimeError) as error:
            text = getattr(error, "evalue", "") or str(error)
            state = f"red: {(text.splitlines() or [type(error).__name__])[0]}"
        rows.append((lesson.path.stem, state, time.perf_counter() - started))
    width = max(len(name) for name, _, _ in rows)
    print(f"\n{'lesson':{width}}  seconds  state")
    for name, state, seconds in rows:
        print(f"{name:{width}}  {seconds:7.1f}  {state}")
    red = sum(state != "green" for _, state, _ in rows)
    print(f"{len(rows) - red} green, {red} red; executed copies are in {options.folder.name}/")
    return int(red > 0)


if __name__ == "__main__":
    run_tool(main)
