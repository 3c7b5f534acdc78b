"""What an expression may stand for. Nothing is run: a value says what it is and how it varies."""

import ast
from collections.abc import Iterator
from itertools import count
from typing import Any

from .conditions import Condition, leaves

# How a value varies, and what it went through.
RANK = 1  # another one on each rank, by the number of the rank
OWN = 2  # made from the data of this rank, its clock, its memory or its random numbers
UNKNOWN = 4  # code that is not read had a part in it
MEASURED = 8  # computed without gradients from a part of the data: the evaluation of one rank
SAVED = 16  # from a file that was loaded
ROUND = 32  # another one in each round of a loop
EVEN = 64  # divided by the number of ranks
UNEVEN = 128  # as many as this rank has; other ranks may have more
SHAPE = 256  # the length or the shape of what this rank has
COUNTED = 512  # a number of items, counted from data
DIVIDED = 1024  # a mean: something of this rank divided by a number of its items
STEPPED = 2048  # counts up in a loop
GRADIENT = 4096  # a parameter or its gradient
HALF = 8192  # computed under autocast
PART = 16384  # of the part of the data that a rank was dealt
DIFFERS = RANK | OWN

NOTHING: frozenset = frozenset()
_numbers = count(1)


class Value:
    """Something; what it is, is not known.

    key: equal for what is surely equal; src: the forwards of models that had a part in it; test: its truth,
    where that is known; name: the name it had in the script, as a hint.
    """

    __slots__ = ("attrs", "key", "name", "node", "notes", "src", "test", "vary")

    def __init__(
        self,
        vary: int = 0,
        src: frozenset = NOTHING,
        name: str = "",
        key: object = None,
        test: Condition | None = None,
        node: ast.AST | None = None,
    ) -> None:
        self.vary = vary
        self.src = src
        self.name = name
        self.key = next(_numbers) if key is None else hash(key) if type(key) is tuple else key
        self.test = test
        self.node = node
        self.attrs: dict[str, Value] | None = None
        self.notes: dict[str, Any] | None = None

    def own(self) -> "dict[str, Value]":
        """Its attributes, as far as they are known."""
        if self.attrs is None:
            self.attrs = {}
        return self.attrs

    def note(self, name: str) -> Any:
        """A note that was made about it; None if there is none."""
        return self.notes.get(name) if self.notes else None

    def mark(self, **notes: Any) -> None:
        self.notes = {**(self.notes or {}), **notes}


class Const(Value):
    __slots__ = ("data",)

    def __init__(self, data: object) -> None:
        super().__init__(key=("const", type(data).__name__, data if is_plain(data) else id(data)))
        self.data = data


class Role(Value):
    """A number that the launcher gave this process: rank, local rank, world, local world, node, index."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        vary = RANK if name in RANKS else 0
        super().__init__(vary=vary, name=name, key=("role", name))


RANKS = ("rank", "local rank", "node", "index", "group rank", "remainder")


class Lib(Value):
    """Something of a package, by its full name."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name=name, key=("lib", name))


class Function(Value):
    """A function of the script; ``bound`` is the object whose method it is."""

    __slots__ = ("body", "bound", "frame", "marks", "owner", "source")

    def __init__(self, body: Any, frame: Any, source: Any, owner: Any = None) -> None:
        super().__init__(name=getattr(body, "name", "lambda"), key=("function", id(body), id(frame)))
        self.body = body
        self.frame = frame
        self.source = source
        self.owner = owner  # the class it stands in
        self.bound: Value | None = None
        self.marks: frozenset[str] = frozenset()  # the decorators of packages

    def of(self, bound: Value) -> "Function":
        function = Function(self.body, self.frame, self.source, self.owner)
        function.bound, function.marks, function.key = bound, self.marks, (self.key, bound.key)
        return function


class Class(Value):
    __slots__ = ("bases", "body", "frame", "marks", "source")

    def __init__(self, body: ast.ClassDef, frame: Any, source: Any, bases: list[Value]) -> None:
        super().__init__(name=body.name, key=("class", id(body), id(frame)))
        self.body, self.frame, self.source, self.bases = body, frame, source, bases
        self.marks: frozenset[str] = frozenset()

    def family(self) -> Iterator["Class"]:
        """The class and those of the script that it inherits from."""
        yield self
        for base in self.bases:
            if isinstance(base, Class):
                yield from base.family()

    def packages(self) -> set[str]:
        """The last names of the packages' classes that it inherits from."""
        names = set()
        for cls in self.family():
            names |= {base.name.rpartition(".")[2] for base in cls.bases if not isinstance(base, Class)}
        return names


class Module(Value):
    """A file of the script."""

    __slots__ = ("frame", "source")

    def __init__(self, source: Any, frame: Any) -> None:
        super().__init__(name=source.name, key=("module", id(source)))
        self.source, self.frame = source, frame


class Method(Value):
    """A method that was named but not yet called: ``model.no_sync``."""

    __slots__ = ("of",)

    def __init__(self, of: Value, name: str) -> None:
        super().__init__(vary=of.vary, src=of.src, name=name, key=("method", of.key, name))
        self.of = of


class Thing(Value):
    """An object: of a class of the script, or made by a call of a package.

    kind: "ddp", "loader", "optimizer"; call: the arguments it was made with; inner: what it wraps.
    """

    __slots__ = ("call", "inner", "kind", "made")

    def __init__(
        self,
        kind: str,
        node: ast.AST | None = None,
        call: Any = None,
        inner: Value | None = None,
        made: Class | None = None,
        vary: int = 0,
        src: frozenset = NOTHING,
    ) -> None:
        super().__init__(vary=vary, node=node, src=src)
        self.kind, self.call, self.inner, self.made = kind, call, inner, made


class Items(Value):
    """A tuple or a list; ``more`` says that it may hold others as well."""

    __slots__ = ("items", "more")

    def __init__(self, items: list[Value], more: bool = False, vary: int = 0) -> None:
        super().__init__(vary=vary)
        self.items, self.more = items, more


class Pairs(Value):
    """A dict; the key ``...`` stands for those that are not known."""

    __slots__ = ("items",)

    def __init__(self, items: dict[object, Value]) -> None:
        super().__init__()
        self.items = items


class Choice(Value):
    """One of several: (the condition under which it is this one, the value)."""

    __slots__ = ("asked", "choices")

    def __init__(self, choices: list[tuple[Condition, Value]], vary: int = 0) -> None:
        src: frozenset = frozenset().union(*(value.src for _, value in choices))
        super().__init__(vary=vary | join(value for _, value in choices), src=src)
        self.choices = choices
        asked = {leaf[:2] for condition, _ in choices for leaf in leaves(condition)}
        if any(kind == "one" for kind, _ in asked):
            asked.add("one")  # type: ignore[arg-type]
        self.asked = asked


PLAIN = (str, int, float, bool, bytes, complex, type(None), type(...))


def is_plain(data: object) -> bool:
    return isinstance(data, PLAIN)


def join(values: Any) -> int:
    vary = 0
    for value in values:
        vary |= value.vary
    return vary


def each(value: Value | None) -> Iterator[Value]:
    """The value, or all that it may be; nothing for None."""
    if isinstance(value, Choice):
        for _, candidate in value.choices:
            yield from each(candidate)
    elif value is not None:
        yield value


def things(value: Value | None, *kinds: str) -> list[Thing]:
    """Of all that a value may be, the objects of these kinds."""
    return [thing for thing in each(value) if isinstance(thing, Thing) and thing.kind in kinds]


def role(value: Value | None) -> str:
    """The role of a number, "" if it has none."""
    return next((candidate.name for candidate in each(value) if isinstance(candidate, Role)), "")


def is_none(value: Value | None) -> bool:
    """Whether it is None, or was not given."""
    return value is None or (isinstance(value, Const) and value.data is None)


def plain(value: Value | None) -> Any:
    """The constant it is; None for all else."""
    return value.data if isinstance(value, Const) else None


def inside(value: Value | None, depth: int = 3) -> Iterator[Value]:
    """The value, and what is in it if it is a list, a dict or a choice."""
    for candidate in each(value):
        yield candidate
        if depth:
            parts = candidate.items if isinstance(candidate, Items) else []
            parts = list(candidate.items.values()) if isinstance(candidate, Pairs) else parts
            for part in parts:
                yield from inside(part, depth - 1)
