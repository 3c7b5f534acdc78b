"""Run a training script in forks, signal a rank at one moment, and compare checkpoints: lessons 11 and 29."""

import faulthandler
import io
import json
import os
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch
import torch._dynamo  # else each fork imports it for its optimizer
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_port
from shared.runtime.run import die_with_launcher

Moment = tuple[str, int]  # what happens to which file, such as "write model.pt", counted from 1; or a call
CALLS = ("train_step", "evaluate")  # of a script's Trainer
COMPLETE = re.compile(r"step_\d{8}")
RESUMED = re.compile(r"^resuming from (step_\d{8})$", re.MULTILINE)
LIMIT_S = 300  # for one run, so that a hang ends
PATIENCE_S = 5.0  # for the ranks that are left when one is killed


@dataclass(frozen=True)
class Kill:
    """The signal that a rank gets before something happens; a write is cut in half."""

    moment: Moment
    rank: int = 0
    signal: int = signal.SIGKILL
    settled: str = ""  # first wait until this checkpoint alone lies there: a thread saves it


class Moments:
    """Notes each change that this process makes in ``folder``, and signals it at one of them.

    A moment is a change of a file, a folder or a name, or an fsync. A process that is watched stays so to
    its end.
    """

    def __init__(self, folder: Path, kill: Kill | None = None) -> None:
        self.folder = folder.resolve()
        self.kill = kill
        self.counts: Counter[str] = Counter()
        self.seen: list[Moment] = []

    def watch(self) -> None:
        """Note the changes from here on."""
        for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync"):
            setattr(os, name, self.watched(name, getattr(os, name)))
        io.open = self.watched_open(io.open)  # ``Path.open`` calls that

    def watch_calls(self, trainer: type) -> None:
        """Note its training steps and evaluations, too."""
        for name in CALLS:
            setattr(trainer, name, self.watched_call(name, getattr(trainer, name)))

    def watched(self, name: str, function: Callable) -> Callable:
        """``function`` of the module ``os``, with a moment before it."""

        def wrapper(*args, **options) -> object:
            changed = args[1] if name in ("rename", "replace") else args[0]
            self.change(name, changed, in_folder=options.get("dir_fd"))
            return function(*args, **options)

        return wrapper

    def watched_call(self, name: str, function: Callable) -> Callable:
        def wrapper(*args, **options) -> object:
            self.strike(name)
            return function(*args, **options)

        return wrapper

    def watched_open(self, real_open: Callable) -> Callable:
        """``io.open``, whose new files are watched."""

        def wrapper(
            file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **options
        ) -> io.IOBase:
            if "w" not in mode:
                return real_open(file, mode, buffering, encoding, errors, newline, **options)
            self.change("open", file)
            written = WatchedFile(file, self)
            return written if "b" in mode else io.TextIOWrapper(written, encoding, errors, newline)

        return wrapper

    def change(
        self, what: str, place: str | Path | int, half: Callable | None = None, in_folder: int | None = None
    ) -> None:
        """A moment, if it is in the folder."""
        path = self.path_of(place, in_folder)
        if path.is_relative_to(self.folder):
            self.strike(f"{what} {path.relative_to(self.folder)}", half)

    def strike(self, what: str, half: Callable | None = None) -> None:
        """One moment: note it and return, or send the signal now, after ``half`` of the work."""
        self.counts[what] += 1
        moment = (what, self.counts[what])
        if self.kill and moment == self.kill.moment:
            while self.kill.settled and all_in(self.folder) != [self.kill.settled]:
                time.sleep(0.01)
            if half is not None:
                half()
            os.kill(os.getpid(), self.kill.signal)
        self.seen.append(moment)

    def path_of(self, place: str | Path | int, in_folder: int | None = None) -> Path:
        """The path of a name or of an open file; a name may be meant within an open folder."""
        if in_folder is not None:
            return self.path_of(in_folder) / place
        if not isinstance(place, int):
            return Path(place).absolute()
        for path in (self.folder, *self.folder.rglob("*")):
            with suppress(FileNotFoundError):  # another rank has removed it
                if os.path.samestat(path.stat(), os.fstat(place)):
                    return path
        return Path("elsewhere")


class WatchedFile(io.FileIO):
    """A new file, each write to which is a moment. It has no buffer: what is written is in the file."""

    def __init__(self, path: Path, moments: Moments) -> None:
        super().__init__(path, "w")
        self.moments = moments

    def write(self, data: bytes) -> int:
        first_half = memoryview(data)[: len(data) // 2]
        self.moments.change("write", self.name, half=lambda: io.FileIO.write(self, first_half))
        return super().write(data)


@dataclass(frozen=True)
class Ended:
    """A run of a script: the exit codes of its ranks, what they printed, the moments of those that ended."""

    codes: list[int]
    said: str
    seen: list[list[Moment]]

    @property
    def resumed_from(self) -> str:
        """The name of a checkpoint, or nothing."""
        return (RESUMED.findall(self.said) or [""])[-1]


def be_rank(
    script: ModuleType, rank: int, ranks: int, port: int, arguments: list[str], moments: Moments, log: Path
) -> NoReturn:
    """In a fork: be this rank of the script, as torchrun starts it, and end with its exit code."""
    code = 1
    try:
        die_with_launcher()
        # A fork makes torch's thread pool anew. Two threads that do so at once abort: "Invalid thread pool!"
        torch.set_num_threads(1)
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        faulthandler.enable()  # else an abort says nothing
        if ranks > 1:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": HERE}
            os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
        moments.watch()
        moments.watch_calls(script.Trainer)
        code = script.main(arguments)
        log.with_suffix(f".{rank}.json").write_text(json.dumps(moments.seen))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def launch(script: ModuleType, options: str, folder: Path, ranks: int = 1, kill: Kill | None = None) -> Ended:
    """Run the script, whose checkpoints lie in ``folder``. When a rank fails, end the others, as torchrun."""
    log = folder.with_suffix(".log")
    for old in [log, *log.parent.glob(f"{log.stem}.*.json")]:
        old.unlink(missing_ok=True)
    arguments = [*options.split(), "--checkpoints", str(folder)]
    port = free_port() if ranks > 1 else 0
    started = {}
    for rank in range(ranks):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(LIMIT_S)
            moments = Moments(folder, kill if kill and kill.rank == rank else None)
            be_rank(script, rank, ranks, port, arguments, moments, log)
        started[pid] = rank
    codes = {}
    while len(codes) < ranks:
        pid, status = os.wait()
        codes[started[pid]] = os.waitstatus_to_exitcode(status)
        if codes[started[pid]] not in (0, script.SAVED_AND_LEFT):
            end_all([pid for pid, rank in started.items() if rank not in codes])
    files = [log.with_suffix(f".{rank}.json") for rank in range(ranks)]
    seen = [[tuple(m) for m in json.loads(file.read_text())] if file.exists() else [] for file in files]
    return Ended([codes[rank] for rank in range(ranks)], log.read_text(), seen)


def end_all(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if all(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids):
            return  # all have ended; their status is left for ``os.wait``
        time.sleep(0.05)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def all_in(folder: Path) -> list[str]:
    """Names of all that lies there, complete or not, but for the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def complete_in(folder: Path) -> list[str]:
    """Names of the complete checkpoints, the newest last."""
    return sorted(path.name for path in folder.glob("step_*") if COMPLETE.fullmatch(path.name))


def values_in(checkpoint: Path) -> dict[str, torch.Tensor]:
    """{name: tensor} of all that a checkpoint of DCP holds, whole."""
    file = checkpoint.with_suffix(".pt")
    dcp_to_torch_save(checkpoint, file)
    waiting = [("", torch.load(file, weights_only=True))]
    file.unlink()
    values = {}
    while waiting:
        prefix, content = waiting.pop()
        for name, value in content.items():
            if isinstance(value, dict):
                waiting.append((f"{prefix}{name}.", value))
            elif isinstance(value, torch.Tensor):
                values[f"{prefix}{name}"] = value
    return values


def difference(checkpoint: Path, expected: dict[str, torch.Tensor]) -> float:
    """The largest difference between a checkpoint and what it should hold."""
    found = values_in(checkpoint)
    if found.keys() != expected.keys():
        raise CourseError(f"{checkpoint.name} holds other names than that of the unbroken run")
    return max((found[name] - expected[name]).abs().max().item() for name in expected)
