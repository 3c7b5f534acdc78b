"""Where the machine is in a script, what it knows there, and what it has seen."""

import ast
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .conditions import Condition, answers, apart, both, either, is_of_error, negate, simplify
from .sources import Project, Source
from .values import MEASURED, OWN, Choice, Value, each, join

MISSING = object()
MOST_CHOICES = 8
KEPT = frozenset(
    {"wrapper", "sharded", "replicated", "device", "index", "default"}
)  # notes that tell values apart
ALWAYS: dict = {("option", "initialized"): True}  # once the processes have joined


class Frame:
    """One call of a function, or one file: its names, and who called it."""

    def __init__(self, source: Source, outer: "Frame | None" = None, back: "Frame | None" = None) -> None:
        self.source = source
        self.outer = outer
        self.back = back
        self.call: ast.AST | None = None
        self.function: Any = None
        self.owner: Any = None  # the class whose body this is
        self.depth: int = back.depth + 1 if back else 0
        self.locals: dict[str, Value] = {}
        self.shared: dict[str, dict] = {}  # names that stand in another frame: global, nonlocal
        self.returns: list[tuple[Condition, Value]] = []
        self.yielded: list[Value] = []
        self.then: Callable[[Value], None] | None = None  # what a `with` does at the yield


class Guard(NamedTuple):
    """A condition on the way; kind: "if", "exit" (past a return or break), "loop", "except" or "choice"."""

    condition: Condition
    node: ast.AST
    kind: str
    frame: Frame


class Exit(NamedTuple):
    """A return, break, continue, raise or sys.exit, and the conditions it stands under."""

    kind: str
    guards: tuple[Guard, ...]
    node: ast.AST
    frame: Frame


class Loop(NamedTuple):
    node: ast.AST
    over: Value | None  # what a `for` goes through, the condition of a `while`
    frame: Frame
    again: bool  # the second time that the machine goes through it
    number: int


class Call:
    """The arguments of a call."""

    __slots__ = ("args", "keywords", "more", "node")

    def __init__(
        self, node: ast.AST, args: list[Value], keywords: dict[str, Value] | None = None, more: bool = False
    ) -> None:
        self.node = node
        self.args = args
        self.keywords = keywords or {}
        self.more = more  # there are others that cannot be seen

    def get(self, name: str, position: int = 99) -> Value | None:
        """The argument of that name or at that position; None if it is not given."""
        if name in self.keywords:
            return self.keywords[name]
        return self.args[position] if position < len(self.args) else None

    def given(self) -> list[Value]:
        """All arguments but the device, which says nothing of the result."""
        return [*self.args, *(value for name, value in self.keywords.items() if name != "device")]


class Event(NamedTuple):
    """Something of a package that happens: a collective, a step of the optimizer, a file that is written.

    of: the object it happens to; meets: what all ranks meet at there, "" if they do not.
    """

    name: str
    node: ast.AST
    of: Value | None
    call: Call
    result: Value | None
    meets: str
    guards: tuple[Guard, ...]
    loops: tuple[Loop, ...]
    contexts: tuple[Value, ...]
    frame: Frame
    launched: int  # > 0: in a process that the script has started
    uncalled: bool  # in a function whose caller is not seen
    number: int

    @property
    def again(self) -> bool:
        return any(loop.again for loop in self.loops)


class Named(dict[str, list[Event]]):
    """The events of each name; none where there are none."""

    def __missing__(self, name: str) -> list[Event]:
        return []


class State:
    """The place, and the way there."""

    def __init__(self, project: Project, main: Source) -> None:
        self.project = project
        self.main = main
        self.frame = Frame(main)
        self.guards: list[Guard] = []
        self.known: dict = {}
        self.loops: list[Loop] = []
        self.contexts: list[Value] = []
        self.exits: list[Exit] = []
        self.logs: list[dict] = []
        self.events: list[Event] = []
        self.blends: dict[int, Value] = {}
        self.named = Named()
        self.steps = 0
        self.times: Counter[ast.AST] = Counter()
        self.launched = 0
        self.launches = False  # whether the script starts processes
        self.joined = False
        self.uncalled = False
        self.unread: dict[str, tuple[Source, ast.AST]] = {}  # what was called and cannot be read

    if TYPE_CHECKING:  # what the classes that inherit from this one add

        def __getattr__(self, name: str) -> Any: ...

    # --- events ---

    def see(
        self, name: str, call: Call, of: Value | None = None, meets: str = "", result: Value | None = None
    ) -> Event:
        event = Event(
            name,
            call.node,
            of,
            call,
            result,
            meets,
            tuple(self.guards),
            tuple(self.loops),
            tuple(self.contexts),
            self.frame,
            self.launched,
            self.uncalled,
            len(self.events),
        )
        self.events.append(event)
        self.named.setdefault(name, []).append(event)
        return event

    # --- what is known on the way ---

    def now(self, condition: Condition) -> Condition:
        """The condition, with what is known here."""
        if isinstance(condition, bool):
            return condition
        return simplify(condition, self.known)

    def push(self, condition: Condition, node: ast.AST, kind: str) -> list[tuple[object, object]]:
        """Go on under a condition; the result is for ``pop``."""
        self.guards.append(Guard(condition, node, kind, self.frame))
        undo: list[tuple[object, object]] = []
        for key, answer in answers(condition).items():
            undo.append((key, self.known.get(key, MISSING)))
            self.known[key] = answer
        return undo

    def pop(self, undo: list[tuple[object, object]]) -> None:
        self.guards.pop()
        for key, old in reversed(undo):
            if old is MISSING:
                self.known.pop(key, None)
            else:
                self.known[key] = old

    def since(self, base: int, guards: tuple[Guard, ...] | None = None) -> Condition:
        """All conditions on the way from number ``base`` on."""
        return both(*(guard.condition for guard in (self.guards if guards is None else guards)[base:]))

    # --- names and attributes ---

    def store(self, container: dict, key: object, value: Value) -> None:
        """Assign; a branch that is left takes it back."""
        if self.logs:
            self.logs[-1].setdefault((id(container), key), (container, key, container.get(key, MISSING)))
        container[key] = value

    def take_back(self) -> dict:
        """Undo what was stored in a branch; the result says what it was."""
        writes = {}
        for slot, (container, key, old) in self.logs.pop().items():
            writes[slot] = (container, key, container.get(key, MISSING))
            if old is MISSING:
                container.pop(key, None)
            else:
                container[key] = old
        return writes

    def merge(self, condition: Condition, then: dict, otherwise: dict, falls: tuple[bool, bool]) -> None:
        """Store what two branches have stored, as the choice between them."""
        for slot in {**then, **otherwise}:
            container, key, _ = then.get(slot) or otherwise[slot]
            old = container.get(key, MISSING)
            first = then[slot][2] if slot in then else old
            second = otherwise[slot][2] if slot in otherwise else old
            if not falls[1] or second is MISSING:
                value = first
            elif not falls[0] or first is MISSING:
                value = second
            else:
                value = self.choice([(condition, first), (negate(condition), second)])
            if value is not MISSING and value is not old:
                self.store(container, key, value)

    def choice(self, choices: list[tuple[Condition, Value]]) -> Value:
        """One of several values; one alone if they are the same."""
        merged: dict[object, tuple[Condition, Value]] = {}
        vary = 0
        for condition, value in choices:
            if condition is False:
                continue
            # What a rank assigned because of its number, or of an error, may still be the same on all.
            if any(leaf.kind == "own" and not is_of_error(leaf) for leaf in apart(condition)):
                vary |= OWN
            parts = value.choices if isinstance(value, Choice) else [(True, value)]
            if isinstance(value, Choice):
                vary |= value.vary
            for inner, part in parts:
                way = both(condition, inner)
                if way is not False:
                    old = merged.get(part.key)
                    merged[part.key] = (either(old[0], way) if old else way, part)
        kept = list(merged.values())
        if not kept:
            return choices[0][1]
        if len(kept) == 1:
            return kept[0][1]
        if all(
            type(part) is Value and part.test is None and (part.notes is None or KEPT.isdisjoint(part.notes))
            for _, part in kept
        ):
            return self.blend(kept, vary)
        if len(kept) > MOST_CHOICES:
            kept = kept[: MOST_CHOICES // 2] + kept[-MOST_CHOICES // 2 :]
        return Choice(kept, vary)

    def blend(self, choices: list[tuple[Condition, Value]], vary: int) -> Value:
        """One value in place of several, of which nothing is known; the same one for the same choices."""
        key = hash(tuple((way, value.key) for way, value in choices))
        values = [value for _, value in choices]
        blend = self.blends.get(key)
        if blend is None:
            blend = self.blends[key] = Value(name=values[0].name, key=("blend", key))
        blend.vary |= vary | join(values)
        if any(value.src and not value.vary & MEASURED for value in values) and not any(
            apart(way) for way, _ in choices
        ):
            blend.vary &= ~MEASURED  # an option says whether it is gathered, and whether it has to be
        blend.src = blend.src.union(*(value.src for value in values))
        for value in values:
            if value.attrs:
                blend.own().update(
                    {name: part for name, part in value.attrs.items() if name not in blend.own()}
                )
            if value.notes:
                blend.mark(**value.notes)
        return blend

    def settle(self, value: Value) -> Value:
        """The value, without what it cannot be here."""
        if type(value) is not Choice or not self.known or value.asked.isdisjoint(self.known):
            return value
        kept = [(self.now(condition), candidate) for condition, candidate in value.choices]
        kept = [choice for choice in kept if choice[0] is not False]
        if len(kept) == len(value.choices) or not kept:
            return value
        if len(kept) == 1:
            return kept[0][1]
        return Choice(kept)

    def branches(
        self,
        condition: Condition,
        node: ast.AST,
        then: Callable[[], Any],
        otherwise: Callable[[], Any],
        kind: str = "if",
    ) -> tuple[Any, Any]:
        """Go both ways, or the one that can be gone; each way says whether it comes to its end."""
        condition = self.now(condition)
        if condition is True:
            return then(), False
        if condition is False:
            return False, otherwise()
        results, writes = [], []
        for way, run in ((condition, then), (negate(condition), otherwise)):
            self.logs.append({})
            undo = self.push(way, node, kind)
            results.append(run())
            self.pop(undo)
            writes.append(self.take_back())
        falls = (results[0] is not False, results[1] is not False)
        self.merge(condition, writes[0], writes[1], falls)
        return results[0], results[1]

    def clear(self, value: Value | None, bits: int = ~0) -> None:
        """All ranks have the same value from here on."""
        for candidate in each(value):
            candidate.vary &= ~bits
            for name, part in (candidate.attrs or {}).items():
                if name.startswith("["):
                    self.clear(part, bits)
            items = getattr(candidate, "items", None)
            for part in items if isinstance(items, list) else []:
                self.clear(part, bits)
        if isinstance(value, Choice):
            value.vary &= ~bits
