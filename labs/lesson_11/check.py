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
SMALL = 1_000  # fits into the buffer of a file
KILLS = 24
LIMIT_S = 30
AUDITED = {"open": "open", "os.link": "os.link", "os.remove": "os.remove", "os.rename": "os.replace"}


def checkpoint(number: int, size: int = SIZE) -> bytes:
    return bytes([number]) * size


def left_at(path: Path) -> str:
    """What a reader finds."""
    if not path.exists():
        return "is missing"
    data = path.read_bytes()
    if len(data) in (SIZE, SMALL) and data == checkpoint(data[0], len(data)):
        return f"holds save {data[0]}"
    return f"holds {len(data):,} of {SIZE:,} bytes"


def put(number: int, path: Path) -> None:
    """A new file; another name of the old one keeps what it holds."""
    path.unlink(missing_ok=True)
    path.write_bytes(checkpoint(number))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Watch:
    """In a child process: counts the answer's steps, kills it at one, and sees what it does to files."""

    def __init__(self, answer: ModuleType, latest: Path, kill_at: int | None) -> None:
        self.folder = latest.parent
        self.latest = latest
        self.previous = latest.with_name("previous.pt")
        self.kill_at = kill_at
        self.steps = 0
        self.seen: object = None
        self.changes: list[int] = []  # steps before which something on the disk has changed
        self.busy = False
        self.call = "nothing"
        self.faults: list[str] = []
        self.synced = {latest.stat().st_ino: latest.stat().st_size}  # {inode: bytes on the disk}
        self.folder_synced = False
        self.flush_themselves: set[Path] = set()  # files opened with O_SYNC or O_DSYNC
        sys.addaudithook(self.audit)
        self.replace_in(answer, "fsync", self.noting(os.fsync))
        self.replace_in(answer, "fdatasync", self.noting(os.fdatasync))
        self.replace_in(answer, "sync", self.note_sync)

    def replace_in(self, answer: ModuleType, name: str, new: object) -> None:
        """Have the answer call ``new`` for ``os.NAME``, however it has imported that."""
        real = getattr(os, name)
        setattr(os, name, new)
        for its_name, value in list(vars(answer).items()):
            if value is real:
                setattr(answer, its_name, new)

    def noting(self, real: object) -> object:
        def flush(file) -> None:
            real(file)
            about = os.fstat(file if isinstance(file, int) else file.fileno())
            self.synced[about.st_ino] = about.st_size
            self.folder_synced |= stat.S_ISDIR(about.st_mode)

        return flush

    def note_sync(self) -> None:
        """``os.sync`` writes all that the system holds; on Linux it returns when that is done."""
        for path in self.folder.iterdir():
            self.synced[path.stat().st_ino] = path.stat().st_size
        self.folder_synced = True

    def audit(self, event: str, arguments: tuple) -> None:
        if self.busy or event not in AUDITED:
            return
        self.call = AUDITED[event]
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR)
            path = Path(arguments[0]).resolve()
            if writes and arguments[2] & (os.O_SYNC | os.O_DSYNC):
                self.flush_themselves.add(path)
            if writes and self.folder not in (path, path.parent):  # tempfile names the folder first
                self.faults.append("writes outside of the folder; os.replace works within one file system")
        elif event == "os.rename":
            self.folder_synced = False
            self.same_file(arguments)
            if Path(arguments[1]).absolute() == self.latest:
                self.check_flushed(Path(arguments[0]), "latest.pt gets its name")
        elif event == "os.link":
            self.folder_synced = False
            self.same_file(arguments)

    def same_file(self, arguments: tuple) -> None:
        """What is about to get a second or another name keeps how it was opened."""
        old, new = (Path(name).absolute() for name in arguments[:2])
        self.flush_themselves.discard(new)
        if old in self.flush_themselves:
            self.flush_themselves.add(new)

    def check_flushed(self, path: Path, when: str) -> None:
        """Note a fault if the bytes at ``path`` are not on the disk."""
        if path.absolute() in self.flush_themselves:
            return
        size = path.stat().st_size
        synced = self.synced.get(path.stat().st_ino)
        if synced is None:
            self.faults.append(f"{when} before os.fsync: a power cut may leave it empty")
        elif synced != size:
            why = "Python still held the rest, see file.flush()"
            self.faults.append(f"{when} when os.fsync has seen {synced:,} of its {size:,} bytes: {why}")

    def trace(self, frame, event: str, _):
        """Called before each instruction of the answer and of the Python code that it calls."""
        frame.f_trace_opcodes = True
        self.busy = True
        if event == "opcode":
            if self.steps == self.kill_at:
                (self.folder.parent / "report").write_text(json.dumps({"call": self.call}))
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kill_at is None:
                now = (left_at(self.latest), left_at(self.previous), names_in(self.folder))
                if now != self.seen:
                    self.changes.append(self.steps)
                self.seen = now
            self.steps += 1
        self.busy = False
        return self.trace

    def save(self, answer: ModuleType, data: bytes) -> dict:
        """Let the answer save, and report."""
        error = ""
        sys.settrace(self.trace)
        try:
            answer.save(data, self.latest)
        except BaseException as problem:
            error = f"{type(problem).__name__}: {problem}".replace(str(self.folder), "")
        sys.settrace(None)
        self.busy = True
        if not error and self.previous.exists():
            self.check_flushed(self.previous, "previous.pt is there when save returns, but was written")
        if not error and not self.folder_synced:
            self.faults.append("the folder is not flushed after the last os.replace: the name may be lost")
        return {"steps": self.steps, "changes": self.changes, "faults": self.faults, "error": error}


def save_in_child(answer: ModuleType, data: bytes, latest: Path, kill_at: int | None = None) -> dict:
    """Let a child process save, and die at step ``kill_at``; return what it reports."""
    report = latest.parent.parent / "report"
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: this child uses none
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        result = Watch(answer, latest, kill_at).save(answer, data)
        report.write_text(json.dumps(result))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == -signal.SIGALRM:
        raise Wrong(f"save took more than {LIMIT_S} s")
    if code not in (0, -signal.SIGKILL):
        raise Wrong(f"save ended its process with exit code {code}")
    return json.loads(report.read_text())


def complete_save(
    answer: ModuleType, data: bytes, latest: Path, when: str, kill_at: int | None = None
) -> dict:
    """A save that nobody kills. It must leave both checkpoints, on the disk."""
    before = left_at(latest)
    previous = latest.with_name("previous.pt")
    report = save_in_child(answer, data, latest, kill_at)
    if report["error"].startswith("NotImplementedError"):
        raise NotImplementedError
    if report["error"]:
        raise Wrong(f"{when}: {report['error']}")
    if left_at(latest) != f"holds save {data[0]}" or left_at(previous) != before:
        contents = f"latest.pt {left_at(latest)}, previous.pt {left_at(previous)}"
        raise Wrong(f"{when}: {contents}; expected are {data[0]} and {before.removeprefix('holds save ')}")
    if report["faults"]:
        raise Wrong(f"{when}: {report['faults'][0]}")
    return report


def moments_of(report: dict) -> list[int]:
    """Steps at which to kill: each at which a file had changed, and others by chance."""
    moments = set(report["changes"])
    others = sorted({*range(report["steps"])} - moments)
    random.Random(11).shuffle(others)
    moments |= set(others[: max(0, KILLS - len(moments))])
    return sorted(moments)


def check_what_is_left(latest: Path, where: str) -> None:
    """After a kill: save 3 or 4 at ``latest``, and at ``previous.pt`` one that is older, 2 or 3."""
    newest = left_at(latest)
    before = left_at(latest.with_name("previous.pt"))
    if newest not in ("holds save 3", "holds save 4"):
        raise Wrong(f"{where}: latest.pt {newest}")
    if before == newest:
        both = newest.replace("holds", "both hold")
        raise Wrong(f"{where}: latest.pt and previous.pt {both}; if that has diverged, nothing else is left")
    if before not in ("holds save 2", "holds save 3"):
        raise Wrong(f"{where}: previous.pt {before}; it held save 2 before this save")


def verify(answer: ModuleType, group: Group) -> str:
    with tempfile.TemporaryDirectory() as name:
        latest = Path(name).resolve() / "checkpoints" / "latest.pt"
        latest.parent.mkdir()
        latest.write_bytes(checkpoint(1))
        complete_save(answer, checkpoint(2), latest, "a save that nobody disturbs", -1)
        complete_save(answer, checkpoint(6, SMALL), latest, "a save of 1,000 bytes", -1)
        report = complete_save(answer, checkpoint(7), latest, "a third save")  # previous.pt is there
        tried = []
        moments = moments_of(report)
        for moment in moments[group.rank :: group.world_size]:  # the ranks share them
            put(2, latest.with_name("previous.pt"))
            put(3, latest)
            report = save_in_child(answer, checkpoint(4), latest, kill_at=moment)
            where = f"killed after {report.get('call', 'its end')}"
            check_what_is_left(latest, where)
            names = names_in(latest.parent)
            if names not in tried:  # also over what this kill left lying about
                complete_save(answer, checkpoint(5), latest, f"a save after one {where}", -1)
                tried.append(names)
    return f"two whole checkpoints after each of {len(moments)} kills, and the next save worked. Well done."


if __name__ == "__main__":
    check_exercise("11_two_generations", verify, ranks=2)
