"""``make refresh``: execute the lessons whose code, labs or helpers changed, and keep their outputs."""

import argparse
import os
import resource
import socket
import time
from datetime import datetime
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from tqdm import tqdm

from shared.tools import run_tool
from shared.tools.lessons import ROOT, Lesson, inputs_digest, read_lessons
from shared.tools.minutes import measured, read_times, write_times
from shared.tools.outputs import clean, problems

KEY = "rank_by_rank"
TIMEOUT_S = 600
BUSY = 0.1  # the part of the processors that other programs may use while we measure


def is_fresh(lesson: Lesson, root: Path = ROOT) -> bool:
    """Whether the committed outputs come from the code as it is now."""
    return lesson.notebook.metadata.get(KEY, {}).get("inputs") == inputs_digest(lesson, root)


def execute(lesson: Lesson, root: Path = ROOT) -> list[str]:
    """Run a lesson in a fresh kernel, write its outputs and how long its labs ran; return what is wrong.

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
        record_timing=True,
        coalesce_streams=True,
        resources={"metadata": {"path": str((root / lesson.path).parent)}},
    )
    others = Others()
    client.execute()
    times = read_times(root)
    known = times.get(lesson.number, {})
    times[lesson.number] = measured(
        lesson, [seconds_of(cell) for cell in notebook.cells], known, others.are_busy()
    )
    write_times(times, root)
    clean(notebook)
    notebook.metadata[KEY] = {"inputs": inputs_digest(lesson, root)}
    (root / lesson.path).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return problems(notebook, socket.gethostname())


def seconds_of(cell: nbformat.NotebookNode) -> float:
    """How long nbclient says that a cell ran; 0 for Markdown."""
    told = cell.metadata.get("execution", {})
    if "shell.execute_reply" not in told:
        return 0.0
    began, ended = (told[when] for when in ("iopub.execute_input", "shell.execute_reply"))
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


class Others:
    """Whether other programs use the processors, from now on until asked."""

    def __init__(self) -> None:
        self.start = self._look()

    def are_busy(self) -> bool:
        passed, all_used, own = (now - then for now, then in zip(self._look(), self.start, strict=True))
        return all_used - own > BUSY * passed * (psutil.cpu_count() or 1)

    def _look(self) -> tuple[float, float, float]:
        """(time, seconds of processors that all programs have used, that we and our children have used)."""
        whole = psutil.cpu_times()
        own = 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(who)
            own += usage.ru_utime + usage.ru_stime
        return time.monotonic(), sum(whole) - whole.idle - getattr(whole, "iowait", 0.0), own


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
    for lesson in tqdm(todo, desc="refresh", unit="lesson"):
        for problem in execute(lesson):
            failed = True
            tqdm.write(f"{lesson.path.name}: {problem}")
    print(f"refreshed: {', '.join(lesson.number for lesson in todo) or 'nothing, all outputs are fresh'}")
    return int(failed)


if __name__ == "__main__":
    run_tool(main)
