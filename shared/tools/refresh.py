"""``make refresh``: execute the lessons whose code, labs or helpers changed, and keep their outputs."""

import argparse
import os
import socket
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

from shared.runtime.errors import InputError
from shared.tools import run_tool
from shared.tools.copies import copy_of_course, put_stubs
from shared.tools.lessons import ROOT, Lesson, inputs_digest, read_lessons
from shared.tools.outputs import clean, problems
from shared.tools.sync import answers

KEY = "rank_by_rank"
TIMEOUT_S = 600


def is_fresh(lesson: Lesson, root: Path = ROOT) -> bool:
    """Whether the committed outputs come from the code as it is now."""
    return lesson.notebook.metadata.get(KEY, {}).get("inputs") == inputs_digest(lesson, root)


def execute(lesson: Lesson, copy: Path, root: Path = ROOT) -> list[str]:
    """Run a lesson in a fresh kernel in ``copy``, keep its outputs; return what is wrong with them.

    Nothing is written when a cell fails: the exception shows that cell.

    Raises:
        InputError: its exercise holds an answer, whose outputs nobody wants to commit.
    """
    if answers(lesson, root):
        raise InputError(f"{lesson.path.name} was not executed: its exercise holds an answer")
    notebook = lesson.notebook
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str((copy / lesson.path).parent)}},
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
    todo = [lesson for lesson in lessons if lesson.number in wanted or (not wanted and not is_fresh(lesson))]
    failed = False
    os.environ.setdefault("RANK_BY_RANK_DEVICE", "cpu")  # so that outputs are the same everywhere
    with tempfile.TemporaryDirectory(prefix="rank-by-rank-", ignore_cleanup_errors=True) as folder:
        copy = copy_of_course(Path(folder) / "course")
        put_stubs(copy)
        for lesson in tqdm(todo, desc="refresh", unit="lesson"):
            for problem in execute(lesson, copy):
                failed = True
                tqdm.write(f"{lesson.path.name}: {problem}")
    print(f"refreshed: {', '.join(lesson.number for lesson in todo) or 'nothing, all outputs are fresh'}")
    return int(failed)


if __name__ == "__main__":
    run_tool(main)
