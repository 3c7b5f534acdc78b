"""``make fit``: is this machine ready for the course? It takes about a minute, in a copy of the course."""

import contextlib
import os
import platform
import signal
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision

from shared.runtime.errors import CourseError
from shared.tools import run_tool
from shared.tools.copies import copy_of_course, put_stubs
from shared.tools.lessons import ROOT

LIMIT_S = 300  # a step that hangs is ended; each takes seconds
LOG = ROOT / "runs" / "fit.log"
RANKS = ("torchrun", "--standalone", "--nproc-per-node=2")
HELP = "notebooks/using.md, Troubleshooting, helps"


@dataclass(frozen=True)
class Step:
    """What is tried, the command, and what it must print."""

    what: str
    command: tuple[str, ...]
    says: str = ""


STEPS = (
    Step("two ranks meet and agree", (*RANKS, "labs/lab_00_hello.py"), "together: the sum is 1615503"),
    Step(
        "DDP equals one process after each step",
        (*RANKS, "labs/lesson_08/proof_equal.py"),
        "ranks that took part: 0, 1",
    ),
    Step("the training script trains", (*RANKS, "labs/lab_10_train.py", "--epochs", "1"), '"accuracy"'),
    Step(
        "the check of an exercise knows its solution",
        (
            *RANKS[:2],
            "--nproc-per-node=3",
            "labs/lesson_00/check.py",
            "--answer",
            "labs/lesson_00/solution.py",
        ),
        "right: ",
    ),
    Step(
        "papermill runs lesson 00",
        (
            "papermill",
            "--no-progress-bar",
            "--cwd",
            "notebooks",
            "notebooks/00_start_here.ipynb",
            "done.ipynb",
        ),
    ),
)


def describe() -> str:
    """Versions and size of this machine, in one line."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    machine = f"{os.cpu_count()} cores, {gpus} GPUs, {platform.system()}"
    return f"Python {platform.python_version()}, {versions}, {machine}"


def environment(course: Path) -> dict[str, str]:
    """Commands are those of this Python, and ``shared`` is that of ``course``."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    own = {"PATH": path, "PYTHONPATH": str(course), "TMPDIR": str(course.parent)}
    return {"OMP_NUM_THREADS": "1", "RANK_BY_RANK_RESULTS": str(course.parent), **os.environ, **own}


def run(step: Step, course: Path) -> tuple[int | None, str]:
    """(exit code, or None if it did not end within ``LIMIT_S``; all that it printed)."""
    output = course.parent / "output.txt"
    with (
        output.open("wb") as file,
        subprocess.Popen(
            step.command,
            cwd=course,
            env=environment(course),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also after Ctrl-C: nothing is left behind
    return code, output.read_text(encoding="utf-8", errors="replace")


def problem(step: Step, course: Path) -> str | None:
    """Why a step is not as it should be, in one line, or None. All that it printed goes to ``LOG``."""
    try:
        code, output = run(step, course)
    except FileNotFoundError:
        return f"{step.command[0]} was not found: call `make setup`"
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(step.command)}\n{output}\n")
    found = None
    if code is None:
        found = f"it did not end within {LIMIT_S} s"
    elif code:
        found = f"it ended with exit code {code}"
    elif step.says not in output:
        found = f"it did not say {step.says!r}"
    return found and f"{found}; {LOG.relative_to(ROOT)} holds all that it printed, and {HELP}"


def main() -> int:
    print(describe())
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="rank-by-rank-", ignore_cleanup_errors=True) as folder:
        course = copy_of_course(Path(folder) / "course")
        put_stubs(course)
        for step in STEPS:
            started = time.perf_counter()
            complaint = problem(step, course)
            if complaint:
                raise CourseError(f"This machine is not ready: {step.what}: {complaint}.")
            print(f"ok  {step.what} ({time.perf_counter() - started:.0f} s)", flush=True)
    print("This machine is ready.")
    return 0


if __name__ == "__main__":
    run_tool(main)
