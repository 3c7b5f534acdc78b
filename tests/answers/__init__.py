"""Answers to the exercises: wrong ones are told why, right ones may look unusual. One file per exercise.

To add an answer, append to ``ANSWERS`` in ``tests/answers/exercise_NN.py``::

    wrong("Counts from one.", "there is no such item", ("range(rank,", "range(rank + 1,")),

It says what the answer does, what the check must print (each wrong answer of an exercise something else), and
how it differs from ``solution.py``: the old text, which must occur there exactly once, becomes the new one.
There may be several such changes. In texts between triple quotes the lines are whole lines, at any depth, and
the new ones are indented as the old ones were.

Other ways to differ::

    wrong("...", "...", share_of="return list(range(items))")  # between the marks in the function share_of
    wrong("...", "...", below="def share_of(...): ...")  # below the solution, in place of what has its name

``right("Works on numpy's integers.", ...)`` must be accepted.

Try one: ``.venv/bin/python -m pytest tests/test_exercises.py -k "05_reduce_scatter and wrong"``.
"""

import re
from dataclasses import dataclass
from importlib import import_module
from textwrap import dedent, indent

from shared.runtime.stubs import BEGIN, END
from tests.helpers import EXERCISE_FOLDER

Change = tuple[str, str]
RIGHT = "right: "


@dataclass(frozen=True)
class Answer:
    """How an answer differs from the solution, and what the check then says.

    Attributes:
        parts: {name of a function: what stands between its marks}.
        below: what stands below the solution.
    """

    what: str
    told: str
    changes: tuple[Change, ...]
    parts: dict[str, str]
    below: str

    @property
    def is_right(self) -> bool:
        return self.told == RIGHT

    def text(self, solution: str) -> str:
        """The answer. Raises ``ValueError`` if what is to change does not stand in the solution once."""
        for old, new in self.changes:
            solution = changed(solution, old, new)
        for name, part in self.parts.items():
            solution = with_part(solution, name, part)
        return f"{solution}\n\n{block(self.below)}\n" if self.below else solution


def wrong(what: str, told: str, *changes: Change, below: str = "", **parts: str) -> Answer:
    return Answer(what, told, changes, parts, below)


def right(what: str, *changes: Change, below: str = "", **parts: str) -> Answer:
    return Answer(what, RIGHT, changes, parts, below)


def block(text: str) -> str:
    """Lines without what all of them are indented by, and without empty ones around them."""
    return dedent(text).strip("\n")


def changed(text: str, old: str, new: str) -> str:
    """``text`` with ``new`` in place of ``old``."""
    whole_lines = "\n" in old + new
    pattern = re.escape(old)
    if whole_lines:
        first, *others = [re.escape(line) for line in block(old).splitlines()]
        pattern = rf"^( *){first}" + "".join(rf"\n(?:\1{line})" if line else r"\n" for line in others) + "$"
    places = list(re.finditer(pattern, text, re.MULTILINE)) if old else []
    if len(places) != 1:
        raise ValueError(f"{old!r} occurs {len(places)} times, not once")
    (place,) = places
    if whole_lines:
        new = indent(block(new), place[1])
    return text[: place.start()] + new + text[place.end() :]


def with_part(text: str, name: str, part: str) -> str:
    """``text`` with ``part`` in place of what stands between the first marks in the function ``name``."""
    start = text.find(f"def {name}(")
    begin = text.find(BEGIN, start)
    if start < 0 or begin < 0 or "def " in text[start + len("def ") : begin]:
        raise ValueError(f"no marks in {name}")
    depth = begin - text.rindex("\n", 0, begin) - 1
    lines = indent(block(part), " " * depth).lstrip()
    return text[:begin] + lines + text[text.index(END, begin) + len(END) :]


def answers_of(exercise: str) -> list[Answer]:
    """``exercise`` is the name of its folder, such as ``05_reduce_scatter``."""
    return import_module(f"tests.answers.exercise_{exercise[:2]}").ANSWERS


def solution_of(exercise: str) -> str:
    return (EXERCISE_FOLDER / exercise / "solution.py").read_text(encoding="utf-8")
