"""``make refresh``: execute the lessons whose code, labs or helpers changed, and keep their outputs."""

import argparse
import os
import socket
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

from shared.tools import run_tool
from shared.tools.lessons import ROOT, Lesson, inputs_digest, read_lessons
from shared.tools.outputs import clean, problems

KEY = "rank_by_rank"
TIMEOUT_S = 600


def is_fresh(lesson: Lesson, root: Path = ROOT) -> bool:
    """Whether the committed outputs come from the code as it is now."""
    return lesson.notebook.metadata.get(KEY, {}).get("inputs") == inputs_digest(lesson, root)


def execute(lesson: Lesson, root: Path = ROOT) -> list[str]:
    """Run a lesson in a fresh kernel and write its outputs; return what is wrong with them.

    Nothing is written when a cell fails: the exception shows that cell.
    """
    notebook = lesson.notebook
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str((root / lesson.path).parent)}},
    )
    client.execute()
    clean(notebook)
    notebook.metadata[KEY] = {"inputs": inputs_digest(lesson, root)}
    (root / lesson.path).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return problems(notebook, socket.gethostname())


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute stale lessons and keep their outputs.")
    parser.add_argument(
        "lessons", nargs="*", help="numbers of lessons to execute, such as 05; default: the stale"
    )
    wanted = parser.parse_args().lessons
    lessons = read_lessons()
    unknown = set(wanted) - {lesson.number for lesson in lessons}
    if unknown:
        print(f"there is no lesson {', '.join(sorted(unknown))}")
        return 1
    todo = [one for one in lessons if one.number in wanted or (not wanted and not is_fresh(one))]
    failed = False
    os.environ.setdefault("RANK_BY_RANK_DEVICE", "cpu")  # so that outputs are the same everywhere
    for lesson in tqdm(todo, desc="refresh", unit="lesson"):
        for problem in execute(lesson):
            failed = True
            tqdm.write(f"{lesson.path.name}: {problem}")
    print(f"refreshed: {', '.join(lesson.number for lesson in todo) or 'nothing, all outputs are fresh'}")
    return int(failed)


if __name__ == "__main__":
    run_tool(main)
