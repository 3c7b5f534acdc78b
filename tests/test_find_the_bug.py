"""The boxes "Find the bug" of lessons 06 to 13: the code in each prints what the box says, so does the cure.

A box is a Markdown cell with four fenced blocks: an excerpt, what two ranks print, a change that cures it,
and what they print then. The excerpt is taken out of the cell and pasted into its frame, a script in
``find_the_bug.py`` of the lesson's room, at the line ``...  # the excerpt``.
"""

import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from shutil import copy

import nbformat
import pytest

from rank_tools.checklist.program import Program
from rank_tools.checklist.rules import RULES
from rank_tools.checklist.source import Source
from shared.tools.diffs import fenced
from shared.tools.lessons import cells_of
from tests import planted
from tests.helpers import LABS, LESSON_PATHS, ROOMS, ROOT, SCRIPTS
from tests.launch import Job, run_job

FAILURES = ROOT / "notebooks" / "failures.md"
LESSONS = [room.name[-2:] for room in ROOMS if (room / "find_the_bug.py").is_file()]
HEADING = "## Find the bug\n"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = ("python", "text", "diff", "text")
PLACE = re.compile(r"^( *)\.\.\.  # the excerpt\n", re.MULTILINE)
OUR_IMPORT = re.compile(r"^from around import .*\n", re.MULTILINE)
RULE = re.compile(r"`rank-check`[^.]*? with its rule `(\w+)`")
CASE = re.compile(r"\| `(\w+)` \|$", re.MULTILINE)
RANKS = 2


@dataclass(frozen=True)
class Box:
    """One box; ``words`` is all of it but the blocks."""

    lesson: str
    words: str
    excerpt: str
    says: str
    change: str
    says_then: str

    @property
    def cure(self) -> str:
        return cured(self.excerpt, self.change)


def boxes_in(lesson: str) -> list[str]:
    (path,) = [path for path in LESSON_PATHS if path.name.startswith(lesson)]
    cells = cells_of(nbformat.read(path, 4), "markdown")
    return [fenced(cell.source) for cell in cells if cell.source.startswith(HEADING)]


def box_of(lesson: str) -> Box:
    (text,) = boxes_in(lesson)
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks] == list(KINDS)
    return Box(lesson, BLOCK.sub("", text), *[block for _, block in blocks])


def cured(code: str, change: str) -> str:
    """``code`` after a change in the form of a diff without line numbers."""
    lines = change.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    return planted.changed(code, old, new)


def framed(lesson: str, excerpt: str) -> str:
    frame = (LABS / f"lesson_{lesson}" / "find_the_bug.py").read_text(encoding="utf-8")
    (place,) = PLACE.finditer(frame)
    return frame[: place.start()] + textwrap.indent(excerpt, place[1]) + frame[place.end() :]


def is_said(expected: str, said: str) -> bool:
    """Whether ``said`` is what is expected, with anything in place of each ``...``."""
    pattern = ".*".join(map(re.escape, re.split(r" ?\.\.\. ?", expected.rstrip())))
    return re.fullmatch(pattern, said.rstrip()) is not None


def rules_that_find(box: Box, excerpt: str) -> set[str]:
    """What ``rank-check`` finds in a script with this excerpt."""
    script = OUR_IMPORT.sub("", framed(box.lesson, excerpt))
    program = Program(Source("script.py", script))
    return {rule.name for rule in RULES for _ in rule.find(program)}


def said(lesson: str, way: str, excerpt: str, folder: Path) -> str:
    """What the ranks print, by rank."""
    folder = folder / way
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(framed(lesson, excerpt), encoding="utf-8")
    copy(SCRIPTS / "around.py", folder)
    done = run_job(Job(script, [folder, way], RANKS))
    assert done.returncode == 0, done.stdout
    return "".join((folder / f"rank_{rank}.txt").read_text(encoding="utf-8") for rank in range(RANKS))


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_box_and_its_cure_print_what_they_say(lesson: str, tmp_path: Path):
    box = box_of(lesson)
    broken = said(lesson, "broken", box.excerpt, tmp_path)
    then = said(lesson, "cured", box.cure, tmp_path)
    assert is_said(box.says, broken), broken
    assert is_said(box.says_then, then), then
    assert not is_said(box.says, then)


@pytest.mark.parametrize("lesson", LESSONS)
def test_rank_check_finds_what_the_box_says(lesson: str):
    box = box_of(lesson)
    expected = set(RULE.findall(box.words))
    assert "`rank-check`" in box.words
    assert rules_that_find(box, box.excerpt) == expected
    assert rules_that_find(box, box.cure) == set()


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_box_names_what_exists(lesson: str):
    box = box_of(lesson)
    named = set(re.findall(r"`(\w+)`", box.words))
    cases = set(CASE.findall(FAILURES.read_text(encoding="utf-8")))
    assert bool(named & cases) == ("failures.md" in box.words)
    for lab in re.findall(r"`((?:lab|proof)_\w+\.py)`", box.words):
        assert list((ROOT / "labs").rglob(lab))


def test_each_box_has_a_frame():
    heading = json.dumps(HEADING)
    with_a_box = [path.name[:2] for path in LESSON_PATHS if heading in path.read_text(encoding="utf-8")]
    assert with_a_box == LESSONS
