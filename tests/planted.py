"""The one form in which faults in labs and answers to exercises are written: old lines, new lines, words.

The tables are ``faults.py`` and ``answers.py`` of each lesson's room, ``labs/lesson_NN``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from textwrap import dedent, indent
from typing import Literal

from shared.runtime.stubs import BEGIN, END
from tests.helpers import LABS, ROOMS


def changed(text: str, old: str, new: str) -> str:
    """``text`` with ``new`` in place of ``old``, which must occur exactly once.

    Between triple quotes, with a line break first, stand whole lines, at any depth: the new ones are indented
    as the old ones were. Raises ``ValueError`` if there is no such place, more than one, or nothing changes.
    """
    whole_lines = "\n" in (old[:1], new[:1])
    pattern = lines_pattern(old) if whole_lines else re.escape(old)
    places = list(re.finditer(pattern, text, re.MULTILINE)) if old else []
    if len(places) != 1:
        raise ValueError(f"{old!r} occurs {len(places)} times, not once")
    (place,) = places
    if whole_lines:
        new = indent(block(new), place[1])
    result = text[: place.start()] + new + text[place.end() :]
    if result == text:
        raise ValueError(f"{old!r}: nothing changes")
    return result


def block(text: str) -> str:
    """Lines without what all of them are indented by, and without empty ones around them."""
    return dedent(text).strip("\n")


def lines_pattern(lines: str) -> str:
    """Matches these whole lines at any depth, which is its first group."""
    first, *others = [re.escape(line) for line in block(lines).splitlines()]
    return rf"^( *){first}" + "".join(rf"\n(?:\1{line})" if line else r"\n" for line in others) + "$"


def solution_of(exercise: str) -> str:
    """``exercise`` is its name, such as ``05_reduce_scatter``."""
    return (LABS / f"lesson_{exercise[:2]}" / "solution.py").read_text(encoding="utf-8")


def solved(exercise: str, function: str) -> str:
    """As ``old``: the lines between the marks in a function of a solution."""
    solution = solution_of(exercise)
    start = solution.index(f"def {function}(")
    begin = solution.index("\n", solution.index(BEGIN, start))
    end = solution.rindex("\n", start, solution.index(END, start))
    return "\n" + block(solution[begin:end]) + "\n"


@dataclass(frozen=True, kw_only=True)
class Right:
    """An answer that looks unusual and must be accepted: the solution with ``new`` in place of ``old``.

    Attributes:
        what: what the answer does, in a sentence.
        old, new: texts, or for a change in several places as many texts in each.
        below: what stands below the solution, such as imports, or functions that replace those above.
    """

    what: str
    old: str | tuple[str, ...] = ()
    new: str | tuple[str, ...] = ()
    below: str = ""

    def text(self, solution: str) -> str:
        """The answer. Raises ``ValueError`` if ``old`` has no place in the solution."""
        olds, news = [(texts,) if isinstance(texts, str) else texts for texts in (self.old, self.new)]
        text = solution
        for old, new in zip(olds, news, strict=True):
            text = changed(text, old, new)
        return f"{text}\n\n{block(self.below)}\n" if self.below else text


@dataclass(frozen=True, kw_only=True)
class Wrong(Right):
    """An answer that must be rejected with the words ``told``."""

    told: str


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change of a lab that turns the lab ``run`` red.

    Attributes:
        lab: the file that is changed, "05_ring" for ``labs/lab_05_ring.py``, "05_cost" for
            ``labs/lesson_05/proof_cost.py``, "26_gallery" for ``labs/lesson_26/gallery.py``. Of a module and
            a proof of one name, "10_sync_batch_norm" is the proof, "lesson_10/sync_batch_norm" the module.
        told: what the check prints that finds the fault. The lab must not print it without the fault.
        run: the lab to run, if it is another one, such as one that proves a plain lab.
        ranks: of the run. 0: a script that is no rank, as ``python LAB`` starts it.
        launch: "warm" for forks of a process that has torch already, in torchrun's environment. "torchrun"
            and "python" for the real thing: labs that start processes, or measure memory or the launch.
        arguments, options, environment: of the lab, of torchrun, and pairs. FOLDER in them is a folder of
            this run.
        before: a lab and its arguments, which runs before in the same folder, however that ends.
        missing: returns why the fault is skipped on this machine, if it is.
    """

    lab: str
    old: str
    new: str
    told: str
    run: str = ""
    ranks: int = 2
    launch: Literal["warm", "torchrun", "python"] = "warm"
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    before: tuple[str, ...] = ()
    missing: Callable[[], str | None] | None = None

    @property
    def lab_to_run(self) -> str:
        return self.run or self.lab

    @property
    def lesson(self) -> str:
        """Two digits."""
        return self.lab.removeprefix("lesson_")[:2]


def group_of(*faults: Fault, **common) -> list[Fault]:
    """The faults, with what they have in common, such as ``run`` and ``ranks``."""
    return [replace(fault, **common) for fault in faults]


def place_of(name: str, root: Path) -> Path:
    """The file of ``Fault.lab``. A job script has its own ending: "27_train.sbatch"."""
    labs = root / "labs"
    if "." in name:
        return labs / f"lab_{name}"
    if "/" in name:
        return labs / f"{name}.py"
    room = labs / f"lesson_{name[:2]}"
    places = [labs / f"lab_{name}.py", room / f"proof_{name[3:]}.py", room / f"{name[3:]}.py"]
    return next((place for place in places if place.is_file()), places[0])


def all_faults() -> list[Fault]:
    """Of all lessons."""
    return [fault for room in ROOMS for fault in import_module(f"{room.name}.faults").FAULTS]


def answers_of(exercise: str) -> list[Right]:
    return import_module(f"lesson_{exercise[:2]}.answers").ANSWERS
