"""A job under the doctor's eyes: it is started, asked what its processes do, and ended if that was wished."""

import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from . import processes
from .answer import Answer, Child, Death, Stack, Stacks
from .inside import FOLDER, FULL, QUESTION, STACKS_SIGNAL, is_own

ANSWER_S = 5.0  # a process that does not answer within this time holds the interpreter, or is stopped
PLACES_S = 60.0  # and then for the places of its calls
GRACE_S = 5.0  # between SIGTERM and SIGKILL; torchrun needs some of it to end its ranks
SIGNAL_S = 1.0  # for Python's crash handler to write the stacks of a process that does not answer
# What Python's faulthandler writes.
THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-f]+).*\(most recent call first\)")
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class JobError(Exception):
    """The command cannot be started, or a process cannot be looked into. The text is one line."""


class Asked:
    """Processes that answer through a folder: those of a job that a doctor has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deaths: dict[int, Death] = {}

    def read(self, kind: str) -> dict[int, Answer]:
        """{process: what it wrote last}. ``kind``: hello, answer or bye."""
        reports = {}
        for path in self.folder.glob(f"{kind}-*.json"):
            with suppress(OSError, ValueError):
                report = Answer.from_json(json.loads(path.read_text(encoding="utf-8")))
                reports[report.pid] = report
        return reports

    def see_deaths(self) -> None:
        """Note which of the job's processes have ended since, and how. A parent asks soon: look often."""
        greeted = [int(path.stem.partition("-")[2]) for path in self.folder.glob("hello-*.json")]
        for pid in greeted:
            if pid not in self.deaths:
                code = processes.exit_code_of(pid)
                if code is not None or not (processes.PROC / str(pid)).exists():
                    self.deaths[pid] = Death(len(self.deaths), time.time(), code)

    def ask(self, level: int) -> list[Answer]:
        """What the living processes answer. One that is silent or gone is in it by what it last said."""
        number = time.monotonic_ns()
        aside = self.folder / "question.part"
        aside.write_text(json.dumps({"number": number, "level": level}), encoding="utf-8")
        aside.replace(self.folder / QUESTION)
        greeted = self.read("hello")
        expected = greeted.keys() & processes.parents().keys()
        expected -= {pid for pid in expected if processes.is_stopped(pid)}  # it cannot answer
        asked_at = time.monotonic()
        answers: dict[int, Answer] = {}
        while True:
            time.sleep(0.05)
            self.see_deaths()
            answers = {pid: answer for pid, answer in self.read("answer").items() if answer.number == number}
            expected &= processes.parents().keys()
            silent = expected - answers.keys()
            incomplete = [pid for pid in expected & answers.keys() if answers[pid].level < level]
            waited = time.monotonic() - asked_at
            if not (silent and waited < ANSWER_S) and not (incomplete and waited < PLACES_S):
                break
        return self.known(greeted, answers, level)

    def known(self, greeted: dict[int, Answer], answers: dict[int, Answer], level: int = 0) -> list[Answer]:
        """All that is known of each process that has ever greeted."""
        before = self.read("answer")
        byes = self.read("bye")
        parent_of = processes.parents()
        self.see_deaths()
        children = children_of(greeted, parent_of)
        reports = []
        for pid, hello in greeted.items():
            report = answers.get(pid) or before.get(pid) or hello
            report.answered = pid in answers
            report.alive = pid in parent_of
            report.stopped = processes.is_stopped(pid)
            report.bye = byes.get(pid)
            report.death = self.deaths.get(pid)
            report.ancestors = processes.ancestors(pid, parent_of)
            report.children = children.get(pid, [])
            report.use = (processes.cpu_s_of(pid), processes.moved_of(pid))
            self.add_newest_stacks(report, level)
            add_texts(report)
            reports.append(report)
        return reports

    def add_newest_stacks(self, report: Answer, level: int) -> None:
        """Its newest stacks, and how many seconds before now, or before its end, they were taken."""
        pid = report.pid
        ended = report.death.at if report.death else time.time()
        ended = report.bye.time if report.bye else ended
        newest: Stacks = {}
        taken = ended
        if report.alive and not report.answered and level == FULL and not report.stopped:
            newest = self.stacks_by_signal(pid)
        elif not report.alive:
            newest = stacks_in(self.written_stacks(pid).rpartition("Fatal Python error")[2])
            if not newest:
                newest, taken = self.last_place(pid)
        if not newest:  # those of its last answer
            newest = report.stacks
            taken = ended if report.answered and report.alive else report.time
        report.stacks = newest
        report.stacks_age = max(0.0, ended - taken)

    def last_known(self) -> list[Answer]:
        """What was last said, without asking: for a job that has ended."""
        return self.known(self.read("hello"), {})

    def stacks_by_signal(self, pid: int) -> Stacks:
        """Of a process in which a function in C holds the interpreter. Empty if it does not listen."""
        if STACKS_SIGNAL is None or not processes.catches(pid, STACKS_SIGNAL):
            return {}
        before = self.written_stacks(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)
        give_up = time.monotonic() + SIGNAL_S
        while time.monotonic() < give_up:
            time.sleep(0.1)
            written = self.written_stacks(pid)
            if len(written) > len(before):
                time.sleep(0.1)  # it writes line by line
                return stacks_in(self.written_stacks(pid)[len(before) :])
        return {}

    def last_place(self, pid: int) -> tuple[Stacks, float]:
        """Where a process was before it was gone, and when: its own thread notes it each 0.2 s if it can."""
        path = self.folder / f"place-{pid}.txt"
        with suppress(OSError, ValueError):
            noted_at = path.stat().st_mtime
            file, line, function = json.loads(path.read_text(encoding="utf-8"))
            return {"MainThread": [[file, line, function, "", is_own(file)]]}, noted_at
        return {}, 0.0

    def written_stacks(self, pid: int) -> str:
        with suppress(OSError):
            return (self.folder / f"stacks-{pid}.txt").read_text(encoding="utf-8", errors="replace")
        return ""


def stacks_in(text: str) -> Stacks:
    """{thread: its stack, innermost call last}, from what faulthandler has written; the main thread first."""
    threads: Stacks = {}
    for line in text.splitlines():
        if THREAD.match(line):
            threads[f"thread {len(threads)}"] = []
        frame = FRAME.match(line)
        if frame and threads:
            file, number, function = frame.groups()
            threads[list(threads)[-1]].insert(0, [file, int(number), function, "", is_own(file)])
    stacks = [stack for stack in threads.values() if stack and not is_ours(stack)]
    main_last = sorted(stacks, key=lambda stack: stack[0][2] != "<module>")
    return {"MainThread" if n == 0 else f"thread {n}": stack for n, stack in enumerate(main_last)}


def is_ours(stack: Stack) -> bool:
    return any(frame[0].endswith("sitecustomize.py") and frame[2] == "watch" for frame in stack)


def children_of(greeted: Collection[int], parent_of: dict[int, int]) -> dict[int, list[Child]]:
    """{process: what runs below it without our thread}."""
    children: dict[int, list[Child]] = {}
    for child in parent_of.keys() - set(greeted):
        above = processes.ancestors(child, parent_of)
        nearest = next((ancestor for ancestor in above if ancestor in greeted), None)
        if nearest is not None:
            use = (processes.cpu_s_of(child), processes.moved_of(child))
            children.setdefault(nearest, []).append(Child(child, processes.command_of(child), *use))
    return children


def add_texts(report: Answer) -> None:
    """The line of each place: the files are read here, not in the job."""
    linecache.checkcache()
    handled = report.handles.place if report.handles else []
    last = report.bye.place if report.bye else []
    dead = [thread.place for thread in report.dead_threads]
    for stack in [*report.stacks.values(), report.place, handled, last, *dead]:
        for place in stack:
            place[3] = place[3] or linecache.getline(place[0], place[1]).strip()


class Job(Asked):
    """A command, started so that its Python processes can be asked.

    ``files``, {name: file}, are put on the job's PYTHONPATH: Python imports sitecustomize.py by itself.
    ``variable`` tells it the folder, and what it writes there is read until ``forget``.
    """

    def __init__(
        self,
        command: list[str],
        files: dict[str, Path] | None = None,
        variable: str = FOLDER,
        more: dict[str, str] | None = None,
    ) -> None:
        processes.adopt_orphans()
        super().__init__(Path(tempfile.mkdtemp(prefix="rank-doctor-")))
        for name, file in (files or {"sitecustomize.py": Path(__file__).with_name("inside.py")}).items():
            shutil.copy(file, self.folder / name)
        before = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(part for part in (str(self.folder), before) if part)
        environment = {**os.environ, "PYTHONPATH": path, variable: str(self.folder), **(more or {})}
        try:
            self.process = subprocess.Popen(
                [found_command(command[0]), *command[1:]], env=environment, preexec_fn=processes.end_with_us
            )
        except OSError as error:
            shutil.rmtree(self.folder)
            reason = error.strerror or type(error).__name__
            raise JobError(f"{command[0]!r} cannot be started: {reason}") from None

    def exit_code(self) -> int | None:
        """None while it runs; a signal's number counts from 128, as in a shell."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def end(self) -> None:
        """End the command and whatever descends from it."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        while left := processes.descendants(os.getpid()):
            processes.end(left, GRACE_S)

    def forget(self) -> None:
        """Remove the folder. What the job has left running goes on."""
        shutil.rmtree(self.folder, ignore_errors=True)


def found_command(name: str) -> str:
    """``torchrun`` stands beside the interpreter, also where its environment is not activated."""
    beside = Path(sys.executable).parent / name
    if shutil.which(name) is None and os.sep not in name and os.access(beside, os.X_OK):
        return str(beside)
    return name
