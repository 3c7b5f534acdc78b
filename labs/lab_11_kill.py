"""Kill a process at every moment of its save, and see what is left of the checkpoint.

Run it:      python labs/lab_11_kill.py
Written by:  notebooks/11_checkpoints.ipynb
"""

import io
import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.runtime.errors import CourseError
from shared.runtime.results import results_folder
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    features: int = 300


def save_plainly(content: dict, path: Path) -> None:
    """What most scripts do. ``torch.save(content, path)`` writes the same bytes in the same place."""
    with path.open("wb") as file:  # the old checkpoint is gone from here on
        torch.save(content, file)


def save_atomically(content: dict, path: Path) -> None:
    """Write beside the old checkpoint, then put the new one in its place in a single step.

    ``os.replace`` is atomic where POSIX says so: whoever opens ``path`` finds the old file or the new one.
    It works within one file system only, so the temporary file lies in the same folder.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()  # out of this process
        os.fsync(file.fileno())  # and onto the disk, before its name counts
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # the new name, too
    os.close(folder)


class Doom:
    """Counts what this process does to files, and kills it with SIGKILL at moment number ``last``.

    A moment is an open, write, fsync or replace: a write is cut in half, the others do not happen.
    """

    def __init__(self, last: int | None) -> None:
        self.last = last
        self.moments = []
        real_open = io.open

        def doomed_open(*args, **kwargs) -> "DoomedFile":
            self.strike("open")
            return DoomedFile(real_open(*args, **kwargs), self)

        io.open = doomed_open
        os.fsync = self.before("fsync", os.fsync)
        os.replace = self.before("replace", os.replace)

    def strike(self, what: str, half: Callable[[], object] | None = None) -> None:
        """One moment: die now, after ``half`` of the work, or note it and go on."""
        if len(self.moments) == self.last:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        self.moments.append(what)

    def before(self, what: str, function: Callable) -> Callable:
        """``function``, with a moment before it."""

        def wrapper(*args) -> object:
            self.strike(what)
            return function(*args)

        return wrapper


class DoomedFile:
    """A file whose writes are moments of ``doom``."""

    def __init__(self, file: io.BufferedWriter, doom: Doom) -> None:
        self.file = file
        self.doom = doom
        self.flush = file.flush
        self.fileno = file.fileno

    def __enter__(self) -> "DoomedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        self.doom.strike("write", lambda: self.file.write(data[: len(data) // 2]))
        return self.file.write(data)


def die_while(save: Callable, content: dict, path: Path, moment: int | None) -> list[str]:
    """Run ``save`` in a child process that dies at ``moment``; without one, return all its moments."""
    listing = path.with_name("moments.json")
    child = os.fork()
    if child == 0:
        doom = Doom(moment)
        save(content, path)
        doom.strike("end")
        listing.write_text(json.dumps(doom.moments))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != (0 if moment is None else -signal.SIGKILL):
        raise CourseError(f"the child at moment {moment} ended with exit code {code}")
    return json.loads(listing.read_text()) if moment is None else []


def reference(step: int, cfg: Config) -> dict:
    """The checkpoint of a step: one layer, 361 kB."""
    torch.manual_seed(step)
    return {"step": step, "model": torch.nn.Linear(cfg.features, cfg.features).state_dict()}


def left_at(path: Path) -> str:
    """What a reader finds: the old checkpoint, the new one, or one that cannot be loaded."""
    try:
        return {1: "old", 2: "new"}[torch.load(path, weights_only=True)["step"]]
    except (EOFError, OSError, RuntimeError):  # which of them depends on where it was cut
        return "torn"


def main(cfg: Config) -> None:
    old = reference(1, cfg)
    new = reference(2, cfg)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        before = Path(folder) / "before.pt"
        torch.save(old, before)
        for save in (save_plainly, save_atomically):
            moments = die_while(save, new, path, None)
            left = []
            for moment in range(len(moments)):
                path.write_bytes(before.read_bytes())  # what the last kill left beside it stays there
                die_while(save, new, path, moment)
                left.append(left_at(path))
            counts = Counter(left)
            print(f"{save.__name__}: killed at each of {len(moments)} moments")
            print(f"    left are: old {counts['old']}, new {counts['new']}, torn {counts['torn']}")
            rows[save.__name__] = {"moments": moments, "left": left}
    if {"old", "new"} != set(rows["save_atomically"]["left"]) or "torn" not in rows["save_plainly"]["left"]:
        raise CourseError("the atomic save must leave no torn file, and the plain one must")
    results_folder().mkdir(parents=True, exist_ok=True)
    (results_folder() / "lab_11_kill.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    run(main, Config())
