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
        end = next(
            (place for place, text in enumerate(lines) if text and not text.startswith(" ")), len(lines)
        )
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
    conditions = _ways(event)
    if not conditions:
        return conditions
    same = t.notes.get("same line")
    if same is None:
        same = t.notes["same line"] = {}
        for each_event in t.events:
            same.setdefault((each_event.name, each_event.node), []).append(each_event)
    others = [other for other in same[event.name, event.node] if other is not event]
    return [
        (guard, condition)
        for guard, condition in conditions
        if not any(comes_too(other, guard) for other in others)
    ]


def is_alone(t: Machine, event: Event) -> bool:
    """Whether an option that brings a run here keeps it from joining a group: then it is one process."""
    joins = t.notes.get("joins")
    if joins is None:
        joins = t.notes["joins"] = [options(init) for init in t.named["init_process_group"]]
    mine = options(event) if joins else {}
    return bool(mine) and all(
        any(mine.get(key, answer) is not answer for key, answer in join.items()) for join in joins
    )


def options(event: Event) -> dict:
    """The options under which an event happens, with their answers."""
    answers: dict = {}
    for guard in event.guards:
        parts = guard.condition.parts if isinstance(guard.condition, All) else (guard.condition,)
        answers |= {
            leaf.key: leaf.positive for leaf in parts if isinstance(leaf, Leaf) and leaf.kind == "option"
        }
    return answers


def comes_too(other: Event, guard: Guard) -> bool:
    opposite = negate(guard.condition)
    return any(
        other_guard.node is guard.node
        and other_guard.kind == guard.kind
        and guard.kind in ("if", "choice")
        and other_guard.condition == opposite
        for other_guard in other.guards
    )


def _ways(event: Event) -> list[tuple[Guard, Condition]] | None:
    known: dict = dict(ALWAYS)
    for guard in event.guards:  # what all ranks agree on
        parts = guard.condition.parts if isinstance(guard.condition, All) else (guard.condition,)
        known |= {
            leaf[:2]: leaf.positive for leaf in parts if isinstance(leaf, Leaf) and leaf.kind == "option"
        }
    known |= ALWAYS
    conditions = []
    for guard in event.guards:
        condition = simplify(guard.condition, known)
        if condition is False and simplify(guard.condition, ALWAYS) is False:
            return None
        if apart(condition):
            conditions.append((guard, condition))
    return conditions


def who(t: Machine, event: Event) -> str:
    """Who comes: "all", "one", "local one", "others", "some", "turn", "nobody" or "unknown"."""
    conditions = ways(t, event)
    if conditions is None:
        return "nobody"
    if in_turn(event) or any(
        leaf.kind == "turn" for guard in event.guards for leaf in leaves(guard.condition)
    ):
        return "turn"
    together = both(*(condition for _, condition in conditions))
    parts = together.parts if isinstance(together, All) else (together,)
    asked = [part for part in parts if isinstance(part, Leaf)]
    for kind in ("one", "local one"):
        for leaf in asked:
            if leaf.kind == kind:
                return kind if leaf.positive else "others"
    if conditions:
        return "some"
    return "unknown" if event.uncalled else "all"


def in_turn(event: Event) -> bool:
    """Whether a ``with`` lets one rank go before the others."""
    for context in event.contexts:
        name = (
            context.inner.name if isinstance(context, Thing) and context.inner is not None else context.name
        )
        word = name.rpartition(".")[2].lower()
        if any(part in word for part in IN_TURN) and "domain" not in word:
            return True
        made = context.note("made_by") or context.note("unread") or ""
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
    return any(loop is outer.node for event in t.named["backward"] for outer in event.loops)


def escaped(*values: Value | None) -> str:
    """The function that is not read, and got one of these."""
    for value in values:
        for choice in each(value):
            if choice.note("escaped"):
                return choice.note("escaped")
    return ""


def compatible(first: Event, second: Event) -> bool:
    """Whether one run can come to both: their conditions do not exclude each other."""
    return both(*(guard.condition for guard in (*first.guards, *second.guards))) is not False
