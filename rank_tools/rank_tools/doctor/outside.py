"""A look into processes that this doctor did not start: through another doctor's folder, or by py-spy."""

import json
import linecache
import os
import shutil
import subprocess
import time
from pathlib import Path

from . import processes
from .answer import Answer, Stacks
from .inside import FOLDER, FULL, is_own
from .job import Asked, JobError

PY_SPY_S = 20.0


def look_into(pid: int) -> list[Answer]:
    """What ``pid`` and the processes below it do, in the form in which a job's processes answer.

    Raises:
        JobError: there is no such process, or nothing can be learned about it.
    """
    if not processes.is_alive(pid):
        raise JobError(f"there is no process {pid}")
    family = [pid, *processes.descendants(pid)]
    hidden = [member for member in family if not os.access(processes.PROC / str(member) / "environ", os.R_OK)]
    if len(hidden) == len(family) and processes.PROC.joinpath("self").exists():
        raise JobError(f"process {pid} may not be looked into: run rank-doctor as the user that started it")
    for member in family:
        folder = Path(processes.variables_of(member).get(FOLDER, "nowhere"))
        if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return [answer for answer in Asked(folder).ask(FULL) if answer.pid in family]
    py_spy = shutil.which("py-spy")
    if py_spy is None:
        raise JobError(
            f"process {pid} was not started by rank-doctor, and py-spy is not installed: "
            "pip install py-spy, or start the job with rank-doctor -- COMMAND"
        )
    alive = processes.parents()
    answers = []
    problems = []
    for member in family:
        variables = processes.variables_of(member)
        if "RANK" not in variables:
            continue
        try:
            stacks = stacks_by_py_spy(py_spy, member)
        except JobError as error:
            problems.append(str(error))
            continue
        answers.append(
            Answer(
                pid=member,
                parent=alive.get(member, 0),
                time=time.time(),
                variables=variables,
                stacks=stacks,
                knows_calls=False,
                cpu_s=processes.cpu_s_of(member),
                use=(processes.cpu_s_of(member), processes.moved_of(member)),
                ancestors=processes.ancestors(member, alive),
                stopped=processes.is_stopped(member),
            )
        )
    if not answers:
        reason = problems[0] if problems else "none of its processes has the variable RANK"
        raise JobError(f"process {pid}: {reason}")
    return answers


def stacks_by_py_spy(py_spy: str, pid: int) -> Stacks:
    """{name of thread: its stack, innermost call last}."""
    try:
        done = subprocess.run(
            [py_spy, "dump", "--json", "--pid", str(pid)],
            capture_output=True,
            encoding="utf-8",
            timeout=PY_SPY_S,
            check=False,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )
        told = json.loads(done.stdout) if done.returncode == 0 else []
    except subprocess.TimeoutExpired:
        raise JobError(f"py-spy: no answer within {PY_SPY_S:.0f} s") from None
    except (OSError, ValueError) as error:
        raise JobError(f"py-spy: {str(error).splitlines()[0]}") from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or "it failed").splitlines()
        raise JobError(f"py-spy: {lines[0]}")
    by_thread = {}
    for thread in told:
        stack = []
        for frame in reversed(thread["frames"]):
            text = linecache.getline(frame["filename"], frame["line"]).strip()
            stack.append([frame["filename"], frame["line"], frame["name"], text, is_own(frame["filename"])])
        by_thread[thread["thread_name"] or "a thread"] = stack
    main = [name for name in by_thread if name == "MainThread"]
    return {name: by_thread[name] for name in [*main, *(name for name in by_thread if name not in main)]}
