"""Check of exercise 11. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import json
import os
import random
import signal
import stat
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

SIZE = 100_000
KILLS = 24
AUDITED = {"open": "open", "os.link": "os.link", "os.remove": "os.remove", "os.rename": "os.replace"}


def checkpoint(number: int) -> bytes:
    return bytes([number]) * SIZE


def left_at(path: Path) -> str:
    """What a reader finds."""
    if not path.exists():
        return "is missing"
    data = path.read_bytes()
    whole = bool(data) and data == checkpoint(data[0])
    return f"holds save {data[0]}" if whole else f"holds {len(data):,} of {SIZE:,} bytes"


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Watch:
    """In a child process: counts the answer's steps, kills it at one, and sees what it does to files."""

    def __init__(self, answer: ModuleType, latest: Path, kill_at: int | None) -> None:
        self.folder = latest.parent
        self.latest = latest
        self.kill_at = kill_at
        self.steps = 0
        self.seen = None
        self.changes = []
        self.busy = False
        self.fsync = os.fsync
        self.call = "nothing"
        self.faults = []
        self.synced = {}
        self.folder_synced = False
        sys.addaudithook(self.audit)
        for module in (os, answer):
            for name in [name for name, value in vars(module).items() if value is self.fsync]:
                setattr(module, name, self.note_fsync)

    def audit(self, event: str, arguments: tuple) -> None:
        if self.busy or event not in AUDITED:
            return
        self.call = AUDITED[event]
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR)
            folder = Path(arguments[0]).resolve().parent
            if writes and folder != self.folder:
                self.faults.append("writes outside of the folder; os.replace works within one file system")
        elif event == "os.rename":
            self.folder_synced = False
            about = Path(arguments[0]).stat()
            if Path(arguments[1]) == self.latest and self.synced.get(about.st_ino) != about.st_size:
                self.faults.append("latest.pt gets its name before os.fsync: a power cut may leave it empty")

    def note_fsync(self, file) -> None:
        self.fsync(file)
        about = os.fstat(file if isinstance(file, int) else file.fileno())
        self.synced[about.st_ino] = about.st_size
        self.folder_synced |= stat.S_ISDIR(about.st_mode)

    def trace(self, frame, event: str, _):
        """Called before each instruction of the answer and of the Python code that it calls."""
        frame.f_trace_opcodes = True
        self.busy = True
        if event == "opcode":
            if self.steps == self.kill_at:
                (self.folder.parent / "report").write_text(json.dumps({"call": self.call}))
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kill_at is None and self.seen != (now := (left_at(self.latest), names_in(self.folder))):
                self.changes.append(self.steps)
                self.seen = now
            self.steps += 1
        self.busy = False
        return self.trace


def save_in_child(answer: ModuleType, number: int, latest: Path, kill_at: int | None = None) -> dict:
    """Let a child process save, and die at step ``kill_at``; return what it reports."""
    report = latest.parent.parent / "report"
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: this child uses none
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        watch = Watch(answer, latest, kill_at)
        error = ""
        sys.settrace(watch.trace)
        try:
            answer.save(checkpoint(number), latest)
        except BaseException as problem:
            error = f"{type(problem).__name__}: {problem}".replace(str(watch.folder), "")
        sys.settrace(None)
        watch.busy = True
        told = {name: getattr(watch, name) for name in ("steps", "changes", "faults", "folder_synced")}
        report.write_text(json.dumps(told | {"error": error}))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise Wrong(f"save ended its process with exit code {code} (-14: it took more than 30 s)")
    return json.loads(report.read_text())


def complete_save(
    answer: ModuleType, number: int, latest: Path, when: str, kill_at: int | None = None
) -> dict:
    before = left_at(latest)
    previous = latest.with_name("previous.pt")
    report = save_in_child(answer, number, latest, kill_at)
    if report["error"].startswith("NotImplementedError"):
        raise NotImplementedError
    if report["error"] or report["faults"]:
        raise Wrong(f"{when}: {report['error'] or report['faults'][0]}")
    if left_at(latest) != f"holds save {number}" or left_at(previous) != before:
        found = f"latest.pt {left_at(latest)}, previous.pt {left_at(previous)}"
        raise Wrong(f"{when}: {found}; expected are {number} and {before.removeprefix('holds save ')}")
    if not report["folder_synced"]:
        raise Wrong(f"{when}: the folder is not flushed after the last os.replace: the name may be lost")
    return report


def verify(answer: ModuleType, group: Group) -> str:
    with tempfile.TemporaryDirectory() as name:
        latest = Path(name).resolve() / "checkpoints" / "latest.pt"
        latest.parent.mkdir()
        latest.write_bytes(checkpoint(1))
        report = complete_save(answer, 2, latest, "a save that nobody disturbs")
        # Kill at each moment at which a file changed, and at others by chance; the ranks share them.
        moments = set(report["changes"])
        tried = []
        steps = sorted({*range(report["steps"])} - moments)
        random.Random(11).shuffle(steps)
        moments |= set(steps[: max(0, KILLS - len(moments))])
        for moment in sorted(moments)[group.rank :: group.world_size]:
            latest.write_bytes(checkpoint(3))
            report = save_in_child(answer, 4, latest, kill_at=moment)
            if left_at(latest) not in ("holds save 3", "holds save 4"):
                raise Wrong(f"killed after {report.get('call', 'its end')}: latest.pt {left_at(latest)}")
            if (names := names_in(latest.parent)) not in tried:  # also over what this kill left lying about
                when = f"a save after one killed after {report.get('call', 'its end')}"
                complete_save(answer, 5, latest, when, -1)
                tried.append(names)
    return f"latest.pt was whole after each of {len(moments)} kills, and the next save worked. Well done."


if __name__ == "__main__":
    check_exercise("11_two_generations", verify)
