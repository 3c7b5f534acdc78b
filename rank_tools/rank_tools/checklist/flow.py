"""Where a value goes in one file: through variables, a class, and calls of functions in the file."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from .program import Function, Program, argument, dotted, last, parameters

PASSED_ON = {"tqdm", "trange", "enumerate", "zip", "islice", "chain", "BatchSampler", "track"}
ONLY_ASKED = {"len", "print", "isinstance", "type", "id", "hasattr", "bool", "repr", "str", "info", "next"}
SILENT = (ast.Compare, ast.UnaryOp, ast.If, ast.While, ast.Assert, ast.Expr, ast.FormattedValue)
ASSIGNS = (ast.Assign, ast.AnnAssign, ast.NamedExpr)


class LostError(Exception):
    """The value goes where the file does not show what becomes of it."""


class Use(NamedTuple):
    """Where a loader is read: a loop, or a call of ``iter`` or ``cycle``; and its names until then."""

    node: ast.AST
    names: tuple[str, ...]


def uses_of(program: Program, node: ast.AST) -> list[Use]:
    """What reads a loader, from its sampler on; nothing if the file does not show all."""
    try:
        return list(Follower(program).follow(node, ()))
    except LostError:
        return []


class Follower:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.seen: set[ast.AST] = set()

    def follow(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Use]:
        parent = self.program.parents[node]
        if node in self.seen:
            return
        self.seen.add(node)
        if isinstance(parent, ast.keyword):
            yield from self.given(self.program.parents[parent], node, names)
        elif isinstance(parent, ast.Call) and parent.func is not node:
            yield from self.given(parent, node, names)
        elif isinstance(parent, ast.IfExp | ast.BoolOp):
            if node is not getattr(parent, "test", None):
                yield from self.follow(parent, names)
        elif isinstance(parent, ast.For | ast.AsyncFor | ast.YieldFrom | ast.comprehension):
            yield Use(parent, names)
        elif isinstance(parent, ast.Attribute):
            if parent.attr in ("sampler", "batch_sampler", "__iter__"):
                raise LostError
        elif not isinstance(parent, SILENT):
            yield from self.stored(parent, node, names)

    def stored(self, parent: ast.AST, node: ast.AST, names: tuple[str, ...]) -> Iterator[Use]:
        """A value gets a name, alone or as one of several, or is returned."""
        group = parent if isinstance(parent, ast.Tuple | ast.List) else None
        holder = self.program.parents[parent] if group is not None else parent
        takers = [holder]
        if isinstance(holder, ast.Return):
            sites = callers(self.program, self.program.function(holder))
            takers = [self.program.parents[site] for site in sites if group is not None]
            for site in sites if group is None else []:
                yield from self.follow(site, names)
            if not sites:
                raise LostError
        for taker in takers:
            if not isinstance(taker, ASSIGNS):
                raise LostError
            for target in getattr(taker, "targets", None) or [taker.target]:  # type: ignore[union-attr]
                if group is not None:
                    parts = getattr(target, "elts", [])
                    target = parts[group.elts.index(node)] if len(parts) == len(group.elts) else group  # type: ignore
                yield from self.named(target, taker, names)

    def given(self, call: ast.AST, node: ast.AST, names: tuple[str, ...]) -> Iterator[Use]:
        """A value is an argument of a call."""
        name = self.program.name(call)
        word = last(name)
        if word in ONLY_ASKED:
            return
        if word in ("iter", "cycle"):  # one epoch begins there, or all of them
            yield Use(call, names)
        if word in PASSED_ON or word == "cycle" or is_loader(self.program, call):
            yield from self.follow(call, names)
        elif word != "iter":
            taken = given_to(self.program, call, node)
            if taken is None:
                raise LostError
            name, function = taken
            for use in visible(self.program, name, function, function):
                yield from self.follow(use, (*names, name))

    def named(self, target: ast.AST, node: ast.AST, names: tuple[str, ...]) -> Iterator[Use]:
        """A value gets a name: follow what reads it."""
        text = dotted(target)
        own = self.program.class_of(target) if text.startswith("self.") else None
        if not text or text.count(".") != (own is not None):
            raise LostError
        scope = own if own is not None else self.program.scope(target)
        for use in visible(self.program, text, scope, node):
            yield from self.follow(use, (*names, text))


def is_loader(program: Program, call: ast.AST) -> bool:
    """Whether a call makes a DataLoader, or one of a class that the file derives from it."""
    name = program.name(call)
    bases = program.classes[name].bases if name in program.classes else [call]
    return any(program.name(one).endswith("DataLoader") and "torch" in program.name(one) for one in bases)


def given_to(program: Program, call: ast.AST, node: ast.AST) -> tuple[str, Function] | None:
    """(parameter, function of the file) that an argument of a call comes to."""
    if not isinstance(call, ast.Call) or dotted(call.func).partition(".")[0] in program.imports:
        return None
    word = last(dotted(call.func))
    body = program.classes[word].body if word in program.classes else []
    found = [one for one in body if isinstance(one, Function) and one.name == "__init__"]
    found = found or program.functions.get(word, [])
    if len(found) > 1:
        own = program.class_of(call)
        found = [one for one in found if own is not None and program.class_of(one) is own]
    known = [one for one in parameters(found[0]) if one not in ("self", "cls")] if len(found) == 1 else []
    taken = [one for place, one in enumerate(known) if argument(call, one, place) is node]
    return (taken[0], found[0]) if taken else None


def visible(program: Program, text: str, scope: ast.AST, node: ast.AST) -> Iterator[ast.AST]:
    """Where a name is read that got its value at a node of its scope, until it gets another one."""
    first = 0 if node is scope else node.lineno  # type: ignore[attr-defined]
    others = [value for value in program.values.get((scope, text), []) if isinstance(value, ast.expr)]
    later = [
        one.lineno for one in others if getattr(one, "lineno", 0) > first and not program.exclude(node, one)
    ]
    for use in program.uses(text, scope):
        if "." in text:
            yield use
        elif program.owner(use, text) is scope:
            line = use.lineno  # type: ignore[attr-defined]
            if program.scope(use) is not scope or first <= line <= min(later, default=line):
                yield use


def callers(program: Program, function: Function | None) -> list[ast.Call]:
    """The calls of a function; of a method: those of its class, and of an instance that the file makes."""
    if function is None:
        return []
    own = program.class_of(function)
    if own is None or function.name == "__init__":
        return program.sites(function)
    found = []
    for call in program.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == function.name:
            holder = call.func.value
            made = [holder] if isinstance(holder, ast.Call) else program.assigned(holder)
            classes = {last(dotted(one.func)) for one in made if isinstance(one, ast.Call)}
            if program.class_of(call) is own if dotted(holder) == "self" else own.name in classes:
                found.append(call)
    return found


def all_loops(program: Program, node: ast.AST, depth: int = 0) -> list[ast.AST]:
    """The loops around a node, also those around the calls of its function."""
    loops: list[ast.AST] = list(program.loops(node))
    for site in callers(program, program.function(node)) if depth < 4 else []:
        loops += all_loops(program, site, depth + 1)
    return loops
