"""Answers of the layout before version 3, ``labs/exercises/05_reduce_scatter/exercise.py``, go to the rooms.

``make`` calls it when that folder is there. No byte of an answer is lost: where a room holds another answer,
the old one lies beside it as ``exercise.py.kept1``.
"""

import shutil
from pathlib import Path

from shared.runtime.results import ROOT
from shared.runtime.stubs import stub_of
from shared.runtime.writing import RECORDS, keep
from shared.tools import run_tool

OURS = {RECORDS, "__pycache__"}  # no reader has written these


def move_answers(root: Path = ROOT) -> list[str]:
    """Move what lies in the old folders; return where each answer is now, relative to ``labs``."""
    places = []
    old_layout = root / "labs" / "exercises"
    for folder in sorted(old_layout.glob("[0-9][0-9]_*")):
        room = root / "labs" / f"lesson_{folder.name[:2]}"
        for old in sorted(folder.glob("exercise.py*")):
            if room.is_dir() and old.is_file():
                places.append(_moved(old, room / old.name).relative_to(root / "labs").as_posix())
        _remove_if_ours(folder)
    if old_layout.is_dir() and not any(old_layout.iterdir()):
        old_layout.rmdir()
    return places


def _moved(old: Path, new: Path) -> Path:
    content = old.read_bytes()
    if not new.exists() or _is_stub(new):
        shutil.copy2(old, new)
        place = new
    elif new.read_bytes() == content:
        place = new
    else:
        place = keep(new, content)
    old.unlink()
    return place


def _is_stub(path: Path) -> bool:
    solution = path.with_name("solution.py")
    if path.name != "exercise.py" or not solution.is_file():
        return False
    return path.read_text(encoding="utf-8").rstrip() == stub_of(solution.read_text(encoding="utf-8")).rstrip()


def _remove_if_ours(folder: Path) -> None:
    left = {path.name for path in folder.iterdir()}
    if left <= OURS:
        shutil.rmtree(folder)


def main() -> int:
    places = move_answers()
    if places:
        print(f"answers moved from labs/exercises/ to the rooms of their lessons: {', '.join(places)}")
    return 0


if __name__ == "__main__":
    run_tool(main)
