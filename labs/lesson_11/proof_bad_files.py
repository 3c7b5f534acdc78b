"""Files that cannot be resumed from: one line each, and nothing is overwritten.

Run it:      python labs/lesson_11/proof_bad_files.py
"""

import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.runtime.errors import CourseError, InputError
from shared.runtime.run import run
from shared.training.checkpoint import FORMAT, VERSION, load_checkpoint, save_atomically


@dataclass(frozen=True)
class Config:
    features: int = 64


class Trap:
    """An object that, unpickled, creates a file. It could as well remove all of yours."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def bad_files(folder: Path, cfg: Config) -> dict[str, str]:
    """Write the files; {name: what the line about it must say}."""
    good = folder / "good.pt"
    save_atomically(content_of(cfg), good)
    whole = good.read_bytes()
    (folder / "truncated.pt").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.pt").write_bytes(b"")
    (folder / "text.pt").write_text("step 20, loss 0.31\n")
    with zipfile.ZipFile(folder / "archive.pt", "w") as archive:
        archive.writestr("notes.txt", "not a checkpoint")
    torch.save(torch.nn.Linear(2, 2).state_dict(), folder / "other_program.pt")
    torch.save({"format": FORMAT, "version": VERSION - 1, "model": {}}, folder / "older.pt")
    torch.save({"format": FORMAT, "version": VERSION, "model": Trap(folder / "sprung")}, folder / "trap.pt")
    return {
        "truncated.pt": "damaged or cut short",
        "empty.pt": "damaged or cut short (0 bytes)",
        "text.pt": "no checkpoint of torch",
        "archive.pt": "damaged or cut short",
        "other_program.pt": "by another program",
        "older.pt": f"has version {VERSION - 1}",
        "trap.pt": "holds more than tensors",
    }


def content_of(cfg: Config) -> dict:
    torch.manual_seed(0)
    return {"step": 1, "model": torch.nn.Linear(cfg.features, cfg.features).state_dict()}


def train(path: Path, cfg: Config, load: Callable[[Path], dict]) -> None:
    """The frame of a training script: resume where a checkpoint lies, work, save to the same path."""
    content = load(path) if path.exists() else content_of(cfg)
    save_atomically({**content, "step": content["step"] + 1}, path)


def carelessly(path: Path) -> dict:
    """What one finds in many scripts: if it cannot be loaded, start from zero."""
    try:
        return load_checkpoint(path)
    except Exception:
        return content_of(Config())


def a_disk_that_does_not_answer(folder: Path) -> str:
    """Read a file whose first byte Linux cannot read: an error of input and output, and no verdict."""
    path = folder / "unread.pt"
    path.symlink_to("/proc/self/mem")
    try:
        load_checkpoint(path)
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    except InputError as error:
        raise CourseError(f"{path.name} was not read, and yet judged: {error}") from None
    raise CourseError(f"{path.name} should have been unreadable")


def main(cfg: Config) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = bad_files(folder, cfg)
        for file, text in expected.items():
            path = folder / file
            before = path.read_bytes()
            line = ""
            try:
                train(path, cfg, load_checkpoint)
            except InputError as error:
                print(error)
                line = str(error)
            if text not in line or "\n" in line or path.read_bytes() != before:
                raise CourseError(f"{file}: expected one line with {text!r}, and the file as it was")
        print(f"{a_disk_that_does_not_answer(folder)}; the file may or may not be intact")
        if (folder / "sprung").exists():
            raise CourseError("weights_only=True ran what the file told it to")
        torch.load(folder / "trap.pt", weights_only=False)
        print(f"trap.pt with weights_only=False: its code ran: {(folder / 'sprung').exists()}")
        train(folder / "good.pt", cfg, load_checkpoint)
        print(f"good.pt: resumed, now at step {load_checkpoint(folder / 'good.pt')['step']}")
        before = (folder / "older.pt").read_bytes()
        train(folder / "older.pt", cfg, carelessly)
        lost = (folder / "older.pt").read_bytes() != before
        print(f"older.pt with a careless `except`: overwritten: {lost}")
        if not lost or not (folder / "sprung").exists():
            raise CourseError("the trap and the careless script must do their harm here")


if __name__ == "__main__":
    run(main, Config())
