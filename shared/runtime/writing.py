"""``%%writefile`` in a lesson: it writes labs and stubs, and takes nothing away. Imports no torch."""

import hashlib
import tempfile
from pathlib import Path

from shared.runtime.errors import InputError
from shared.runtime.stubs import stub_of

RECORDS = ".written"  # beside each file: a digest of what a cell wrote last
KEPT = ".kept"


def write_cell(path: Path, text: str) -> str:
    """Write ``text`` to ``path`` and return the line that says so.

    - An answer is never replaced by the stub of its exercise.
    - A file that was edited outside of the notebook is kept beside the new one, and named.
    - The file changes in one step: a run of another notebook never reads half of it.

    Raises:
        InputError: there is no folder for it.
    """
    name = path.as_posix()
    if not path.parent.is_dir():
        raise InputError(f"%%writefile: there is no folder {path.parent.as_posix()}")
    before = path.read_bytes() if path.exists() else None
    after = text.encode()
    line = f"Wrote {name}"
    if before is not None and before != after:
        if _is_stub(path, text):
            return f"{name} holds your answer, which stays. To begin again, delete it and run this cell."
        if _digest(before) != _recorded(path):
            line = f"{line}; it was edited before, and the edited file is kept as {keep(path, before).name}"
    if before != after:
        _replace(path, after)
    _record(path, after)
    return line


def _is_stub(path: Path, text: str) -> bool:
    solution = path.with_name("solution.py")
    return solution.is_file() and text.rstrip() == stub_of(solution.read_text(encoding="utf-8")).rstrip()


def keep(path: Path, content: bytes) -> Path:
    """A new file beside ``path`` with this content, or the one that has it already."""
    number = 1
    while True:
        kept = path.with_name(f"{path.name}{KEPT}{number}")
        if not kept.exists():
            kept.write_bytes(content)
            return kept
        if kept.read_bytes() == content:
            return kept
        number += 1


def _replace(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def _record(path: Path, content: bytes) -> None:
    if _recorded(path) != _digest(content):
        record = path.parent / RECORDS / path.name
        record.parent.mkdir(exist_ok=True)
        record.write_text(_digest(content), encoding="utf-8")


def _recorded(path: Path) -> str:
    record = path.parent / RECORDS / path.name
    return record.read_text(encoding="utf-8") if record.is_file() else ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
