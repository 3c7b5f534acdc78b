"""What a rule is, and what rules ask of what a script does."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .conditions import All, Condition, Leaf, apart, both, leaves, negate, simplify
from .machine import Machine
from .sources import Source
from .state import ALWAYS, Event, Frame, Guard
from .values import Thing, Value, each

SEVERITIES = {
    "style": "it works, but repeats itself or is old",
    "slow": "it works, but wastes time or memory",
    "wrong": "no error, and another result: it learns, saves or reports something else, or fails later",
    "hangs": "ranks wait for each other until the timeout",
}
DEFAULT = ("wrong", "hangs")
IN_TURN = ("first", "main", "rank", "lock", "zero", "sequential", "order", "master")


class Found(NamedTuple):
    """A place, and what is wrong there."""

    node: ast.AST
    source: Source
    text: str


class Unasked(NamedTuple):
    """A question that could not be asked, and why."""

    why: str


Answers = Iterator[Found | Unasked]


@dataclass(frozen=True)
class Rule:
    """A function that yields what it finds. Its docstring asks, and says what happens else."""

    code: str
    severity: str
    lesson: str
    find: Callable[[Machine], Answers]
    first_sight: tuple[int, int]  # how many findings were true, and of how many, on scripts it had not seen
    by_default: bool  # not where it is about speed or style, or was wrong too often

    @property
    def name(self) -> str:
        return self.find.__name__

    @property
    def question(self) -> str:
        return " ".join((self.find.__doc__ or "").partition("\n\n")[0].split())

    @property
    def bad(self) -> str:
        """The example of the docstring, below "Wrong:"."""
        return self._example("Wrong:")

    @property
    def good(self) -> str:
        return self._example("Right:")

    def _example(self, head: str) -> str:
        _, _, rest = inspect.cleandoc(self.find.__doc__ or "").partition(f"{head}\n")
        lines = rest.split("\n")
        end = next((place for place, one in enumerate(lines) if one and not one.startswith(" ")), len(lines))
        return textwrap.dedent("\n".join(lines[:end])).strip("\n")

    @property
    def tier(self) -> str:
        return "sure" if is_sure(*self.first_sight) else "likely"

    @property
    def record(self) -> str:
        true, judged = self.first_sight
        return f"{true} of {judged} such findings were true" if judged else "no such finding was judged yet"


def is_sure(true: int, judged: int) -> bool:
    """Right at least nine times in ten, over three findings or more."""
    return judged >= 3 and true >= 0.9 * judged


def rule(
    code: str, severity: str, lesson: str, first_sight: tuple[int, int] = (0, 0), by_default: bool = True
) -> Callable[[Callable[[Machine], Answers]], Rule]:
    """Make a rule of a function."""
    assert severity in SEVERITIES
    return lambda find: Rule(code, severity, lesson, find, first_sight, by_default and severity in DEFAULT)


# --- who comes to an event ---


def ways(t: Machine, event: Event) -> list[tuple[Guard, Condition]] | None:
    """The conditions on the way that ranks answer differently; None if no run on several ranks comes here.

    A condition does not count where the other ranks come to the same line by the other branch.
    """
    if is_alone(t, event):
        return None
    found = _ways(event)
    if not found:
        return found
    same = t.notes.get("same line")
    if same is None:
        same = t.notes["same line"] = {}
        for one in t.events:
            same.setdefault((one.name, one.node), []).append(one)
    others = [one for one in same[event.name, event.node] if one is not event]
    return [
        (guard, condition) for guard, condition in found if not any(comes_too(one, guard) for one in others)
    ]


def is_alone(t: Machine, event: Event) -> bool:
    """Whether an option that brings a run here keeps it from joining a group: then it is one process."""
    joins = t.notes.get("joins")
    if joins is None:
        joins = t.notes["joins"] = [options(one) for one in t.named["init_process_group"]]
    mine = options(event) if joins else {}
    return bool(mine) and all(
        any(mine.get(key, one) is not one for key, one in join.items()) for join in joins
    )


def options(event: Event) -> dict:
    """The options under which an event happens, with their answers."""
    found: dict = {}
    for guard in event.guards:
        parts = guard.condition.parts if isinstance(guard.condition, All) else (guard.condition,)
        found |= {
            leaf.key: leaf.positive for leaf in parts if isinstance(leaf, Leaf) and leaf.kind == "option"
        }
    return found


def comes_too(other: Event, guard: Guard) -> bool:
    opposite = negate(guard.condition)
    return any(
        one.node is guard.node
        and one.kind == guard.kind
        and guard.kind in ("if", "choice")
        and one.condition == opposite
        for one in other.guards
    )


def _ways(event: Event) -> list[tuple[Guard, Condition]] | None:
    known: dict = dict(ALWAYS)
    for guard in event.guards:  # what all ranks agree on
        parts = guard.condition.parts if isinstance(guard.condition, All) else (guard.condition,)
        known |= {
            leaf[:2]: leaf.positive for leaf in parts if isinstance(leaf, Leaf) and leaf.kind == "option"
        }
    known |= ALWAYS
    found = []
    for guard in event.guards:
        condition = simplify(guard.condition, known)
        if condition is False and simplify(guard.condition, ALWAYS) is False:
            return None
        if apart(condition):
            found.append((guard, condition))
    return found


def who(t: Machine, event: Event) -> str:
    """Who comes: "all", "one", "local one", "others", "some", "turn", "nobody" or "unknown"."""
    found = ways(t, event)
    if found is None:
        return "nobody"
    if in_turn(event) or any(
        leaf.kind == "turn" for guard in event.guards for leaf in leaves(guard.condition)
    ):
        return "turn"
    together = both(*(condition for _, condition in found))
    parts = together.parts if isinstance(together, All) else (together,)
    asked = [part for part in parts if isinstance(part, Leaf)]
    for kind in ("one", "local one"):
        for leaf in asked:
            if leaf.kind == kind:
                return kind if leaf.positive else "others"
    if found:
        return "some"
    return "unknown" if event.uncalled else "all"


def in_turn(event: Event) -> bool:
    """Whether a ``with`` lets one rank go before the others."""
    for one in event.contexts:
        name = one.inner.name if isinstance(one, Thing) and one.inner is not None else one.name
        word = name.rpartition(".")[2].lower()
        if any(part in word for part in IN_TURN) and "domain" not in word:
            return True
        made = one.note("made_by") or one.note("unread") or ""
        if any(part in made.rpartition(".")[2].lower() for part in IN_TURN):
            return True
    return False


def everyone(t: Machine, event: Event) -> bool:
    return who(t, event) == "all"


def is_together(t: Machine) -> bool:
    """Whether the script is written for several processes at all."""
    if t.joined or t.launches or t.together:
        return True
    return any(event.meets for event in t.events) or "sampler" in t.named


def is_managed(t: Machine) -> bool:
    """Whether a framework wraps the model and deals out the data."""
    return any(name in t.named for name in ("accelerator", "fabric", "trainer", "deepspeed")) or bool(
        managing(t)
    )


def managing(t: Machine) -> str:
    """Why it is unknown what happens to gradients and data: a package that does it in its own way."""
    return next(iter(sorted(t.managers)), "")


def call_in(event: Event, frame: Frame) -> ast.AST:
    """The call in a frame that leads to an event."""
    inner = event.frame
    if inner is frame:
        return event.node
    while inner.back is not None and inner.back is not frame:
        inner = inner.back
    return inner.call if inner.back is frame and inner.call is not None else event.node


def at(event: Event, text: str) -> Found:
    return Found(event.node, event.frame.source, text)


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 1)


# --- what is computed together ---


def trains(t: Machine, loop: ast.AST) -> bool:
    """Whether a loop goes backward."""
    return any(loop is one.node for event in t.named["backward"] for one in event.loops)


def escaped(*values: Value | None) -> str:
    """The function that is not read, and got one of these."""
    for value in values:
        for one in each(value):
            if one.note("escaped"):
                return one.note("escaped")
    return ""


def compatible(first: Event, second: Event) -> bool:
    """Whether one run can come to both: their conditions do not exclude each other."""
    return both(*(one.condition for one in (*first.guards, *second.guards))) is not False
