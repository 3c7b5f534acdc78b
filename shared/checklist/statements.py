"""What statements do: assign, branch, loop, leave, define and import."""

import ast
from typing import Any

from .conditions import Condition, Leaf, apart, both, negate
from .expressions import Expressions
from .names import words
from .state import Call, Exit, Frame, Guard, Loop
from .values import (
    DIFFERS,
    MEASURED,
    OWN,
    ROUND,
    SAVED,
    SHAPE,
    STEPPED,
    UNEVEN,
    UNKNOWN,
    Choice,
    Class,
    Const,
    Function,
    Items,
    Lib,
    Module,
    Pairs,
    Thing,
    Value,
    each,
    plain,
)

MOST_FRAMES = 40
MOST_NODES = 4000  # of one function are gone through, all its calls together
LEAVES = ("return", "exit")
FAILS = ("raise", "assert")
LEFT = "left"  # by break or continue: what was assigned still counts
Falls = bool | str
# An error of these kinds comes from what one rank computes; others come on all ranks alike, or not at all.
OWN_ERRORS = words("""
    RuntimeError Exception BaseException OutOfMemoryError ValueError FloatingPointError AssertionError
    ArithmeticError ZeroDivisionError OverflowError IndexError CudaError
    """) | {""}


def one_of(first: Falls, second: Falls) -> Falls:
    """What becomes of either way."""
    if first is True or second is True:
        return True
    return LEFT if LEFT in (first, second) else False


def is_to_do(node: ast.stmt) -> bool:
    """Whether it is ``raise NotImplementedError``."""
    error = node.exc.func if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) else None
    error = node.exc if isinstance(node, ast.Raise) and error is None else error
    return isinstance(error, ast.Name) and error.id == "NotImplementedError"


FAILS_ON_ALL = ("init_process_group", "monitored_barrier")


class Statements(Expressions):
    """Goes through statements. Each says whether the line after it is reached: True, False or LEFT."""

    def block(self, statements: list[ast.stmt]) -> Falls:
        undo = []
        falls: Falls = True
        for statement in statements:
            if is_to_do(statement) and statement is not statements[-1]:
                continue  # the lines below are what will run
            before, base = len(self.exits), len(self.guards)
            falls = self.statement(statement)
            if falls is not True:
                break
            for way_out in self.exits[before:]:
                left = self.since(base, way_out.guards)
                # A rank that raises ends the job; what all ranks find alike is known from here on.
                if left is not True and not (way_out.kind in FAILS and apart(left)):
                    undo.append(self.push(self.now(negate(left)), way_out.node, "exit"))
        for done in reversed(undo):
            self.pop(done)
        return falls

    def statement(self, node: ast.stmt) -> Falls:
        self.steps += 1
        do = getattr(self, f"do_{type(node).__name__}", None)
        falls = do(node) if do else True
        return True if falls is None else falls

    # --- assignments ---

    def do_Expr(self, node: ast.Expr) -> bool:
        before = len(self.exits)
        self.value(node.value)
        return not any(
            way_out.kind in ("exit", "raise") and way_out.guards == tuple(self.guards)
            for way_out in self.exits[before:]
        )

    def do_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        first = node.targets[0]
        left = node.value.left if isinstance(node.value, ast.BinOp) else None
        if isinstance(first, ast.Name) and isinstance(left, ast.Name) and left.id == first.id:
            value = self.counted(value)
        for target in node.targets:
            self.assign(target, value)

    def counted(self, value: Value) -> Value:
        """A number that a loop counts up is another one in each round."""
        if isinstance(value, Const) and any(loop.frame is self.frame for loop in self.loops):
            return Value(vary=ROUND | STEPPED)
        return value

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        old = self.value(node.target)
        more = self.value(node.value)
        self.use(old, node)
        self.use(more, node)
        result = self.counted(self.computed(old, type(node.op).__name__, more))
        if result.name == "" and isinstance(node.target, ast.Name):
            result.name = node.target.id
        if type(result) is Value and result is not old:
            result.vary &= ~SHAPE  # a total is not empty where one batch is
        self.assign(node.target, result)

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            frame = self.frame
            if not value.name and type(value) in (Value, Thing, Choice):
                value.name = target.id
            self.store(frame.shared.get(target.id, frame.locals), target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self.assign_parts(target.elts, value)
        elif isinstance(target, ast.Attribute):
            self.assign_attribute(target, value)
        elif isinstance(target, ast.Subscript):
            self.assign_item(target, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value)

    def assign_parts(self, targets: list[ast.expr], value: Value) -> None:
        starred = next(
            (place for place, target in enumerate(targets) if isinstance(target, ast.Starred)), None
        )
        for place, target in enumerate(targets):
            if starred is not None and place >= starred:
                rest = place == starred
                self.assign(
                    target, self.mixed([value]) if rest else self.item(value, Const(place - len(targets)))
                )
            else:
                part = self.element(value, place, len(targets))
                self.assign(target, part)

    def element(self, value: Value, place: int, number: int) -> Value:
        """Number ``place`` of what is taken apart."""
        if isinstance(value, Choice):
            return self.choice(
                [(way, self.element(candidate, place, number)) for way, candidate in value.choices]
            )
        if isinstance(value, Items) and not value.more and len(value.items) == number:
            return value.items[place]
        if isinstance(value, Thing) and value.kind == "ddp" and place:
            return Value()
        return self.item(value, Const(place))

    def assign_attribute(self, target: ast.Attribute, value: Value) -> None:
        of = self.value(target.value)
        if not value.name and type(value) in (Value, Thing, Choice):
            value.name = target.attr
        self.see("set attribute", Call(target, [value], {"name": Const(target.attr)}), of)
        for owner in each(of):
            if isinstance(owner, Module | Class):
                self.store(owner.frame.locals, target.attr, value)
            elif not isinstance(owner, Const):
                made = owner.made if isinstance(owner, Thing) else None
                if made is None or self.member(made, "__getattr__") is not None:
                    self.part(owner, target.attr)  # what it was before, where a branch is not taken
                self.store(owner.own(), target.attr, value)

    def assign_item(self, target: ast.Subscript, value: Value) -> None:
        of = self.value(target.value)
        index = self.value(target.slice)
        self.see("set item", Call(target, [value, index]), of)
        for holder in each(of):
            if isinstance(holder, Pairs):
                self.store(holder.items, plain(index) if isinstance(index, Const) else ..., value)
            elif isinstance(holder, Items):
                place = plain(index)
                if isinstance(place, int) and -len(holder.items) <= place < len(holder.items):
                    holder.items[place] = value
                else:
                    holder.vary |= value.vary
            elif not isinstance(holder, Const | Lib):
                if isinstance(index, Const) and type(holder) is Value:
                    holder.mark(
                        before=holder.vary if holder.note("before") is None else holder.note("before")
                    )
                    self.store(holder.own(), f"[{index.data}]", value)
                holder.vary |= (value.vary | index.vary) & (DIFFERS | MEASURED | UNKNOWN)

    def do_Delete(self, node: ast.Delete) -> None:
        return None

    # --- branches ---

    def do_If(self, node: ast.If) -> Falls:
        condition = self.now(self.truth(self.value(node.test)))
        return one_of(
            *self.branches(condition, node, lambda: self.block(node.body), lambda: self.block(node.orelse))
        )

    def do_Match(self, node: ast.Match) -> Falls:
        subject = self.value(node.subject)

        def go(place: int) -> Falls:
            if place == len(node.cases):
                return True
            case = node.cases[place]
            condition: Condition = Leaf("option", (subject.key, ast.dump(case.pattern)))
            if isinstance(case.pattern, ast.MatchValue):
                condition = self.compared(subject, "Eq", self.value(case.pattern.value))
            elif isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                condition = True
            if case.guard is not None:
                condition = both(condition, self.truth(self.value(case.guard)))
            results = self.branches(
                condition, case.pattern, lambda: self.block(case.body), lambda: go(place + 1)
            )
            return one_of(*results)

        return go(0)

    def do_Assert(self, node: ast.Assert) -> None:
        fails = negate(self.now(self.truth(self.value(node.test))))
        if not isinstance(fails, bool):
            self.exits.append(
                Exit("assert", (*self.guards, Guard(fails, node, "if", self.frame)), node, self.frame)
            )

    # --- loops ---

    def do_For(self, node: ast.For | ast.AsyncFor) -> bool:
        over = self.value(node.iter)
        condition = self.rounds(over, node)
        return self.loop(node, over, condition)

    do_AsyncFor = do_For

    def do_While(self, node: ast.While) -> Falls:
        test = self.value(node.test)
        condition = self.now(self.truth(test))
        if condition is False:
            return self.block(node.orelse)
        falls = self.loop(node, test, condition)
        return falls or condition is not True

    def rounds(self, over: Value, node: ast.AST) -> Condition:
        """Whether all ranks go through a loop equally often."""
        if self.is_uneven(over):
            return Leaf("own", ("uneven", over.key))
        counted = isinstance(over, Thing) and over.kind == "range" and over.vary & DIFFERS
        if counted and not over.vary & (UNKNOWN | SAVED):
            return Leaf("own" if over.vary & OWN else "some", ("rounds", over.key))
        return True

    def is_uneven(self, over: Value) -> bool:
        """Whether ranks have parts of unequal length there."""
        if over.vary & UNEVEN:
            return True
        for iterable in each(over):
            if isinstance(iterable, Thing) and iterable.kind == "loader" and self.share_of(iterable) & UNEVEN:
                return True
            if isinstance(iterable, Thing) and iterable.kind in ("enumerate", "zip"):
                parts = [iterable.inner] if iterable.inner is not None else iterable.call.args
                if any(self.is_uneven(part) for part in parts):
                    return True
        return False

    def loop(self, node: Any, over: Value | None, condition: Condition) -> bool:
        first, base = len(self.exits), len(self.guards)
        twice = not any(loop.again for loop in self.loops)
        undo = []
        broken = False
        for again in (False, True) if twice else (False,):
            if again:
                for way_out in self.exits[first:]:
                    if way_out.kind in ("break", *LEAVES):
                        left = self.since(base + 1, way_out.guards)  # past the condition of the loop
                        if left is not True:
                            undo.append(self.push(negate(left), way_out.node, "exit"))
                if isinstance(node, ast.While):
                    condition = self.now(self.truth(self.value(node.test)))
            self.loops.append(Loop(node, over, self.frame, again, len(self.events)))
            way = self.push(condition, node, "loop")
            if over is not None and not isinstance(node, ast.While):
                self.assign(node.target, self.item_of(over, node))
            falls = self.block(node.body)
            self.pop(way)
            self.loops.pop()
            if falls is False:
                break  # it always leaves in the first round
            broken = broken or any(way_out.kind == "break" for way_out in self.exits[first:])
        for done in reversed(undo):
            self.pop(done)
        self.see("loop ends", Call(node, []), over)
        self.exits[first:] = [
            way_out for way_out in self.exits[first:] if way_out.kind not in ("break", "continue", "assert")
        ]
        endless = isinstance(node, ast.While) and condition is True and not broken
        self.block(node.orelse)
        return not endless

    def do_Break(self, node: ast.Break) -> Falls:
        self.leave("break", node)
        return LEFT

    def do_Continue(self, node: ast.Continue) -> Falls:
        self.leave("continue", node)
        return LEFT

    def leave(self, kind: str, node: ast.AST) -> bool:
        self.exits.append(Exit(kind, tuple(self.guards), node, self.frame))
        return False

    def do_Return(self, node: ast.Return) -> bool:
        value = self.value(node.value)
        base = self.frame_base
        self.frame.returns.append((self.since(base), value))
        return self.leave("return", node)

    frame_base = 0  # the number of conditions around the function that is gone through

    def do_Raise(self, node: ast.Raise) -> bool:
        self.value(node.exc)
        return self.leave("raise", node)

    # --- errors and blocks ---

    def do_Try(self, node: ast.Try) -> Falls:
        before, events = len(self.exits), len(self.events)
        falls = self.block(node.body)
        met = [event for event in self.events[events:] if event.meets and event.name not in FAILS_ON_ALL]
        seen = self.events[events:]
        self.exits[before:] = [
            way_out for way_out in self.exits[before:] if way_out.kind != "raise" or not node.handlers
        ]
        if falls is True:
            falls = self.block(node.orelse)
        for handler in node.handlers:
            names = self.errors(handler)
            own = bool(names & OWN_ERRORS) and bool(met or self.touches_own(node.body, seen))
            own = own and not all(isinstance(line, ast.Import | ast.ImportFrom) for line in node.body)
            key = ("except", id(handler))
            condition = Leaf("own" if own else "option", key)

            def handle(handler: ast.ExceptHandler = handler) -> Falls:
                if handler.name:
                    self.store(self.frame.locals, handler.name, Value(name=handler.name))
                return self.block(handler.body)

            goes_on, _ = self.branches(condition, handler, handle, lambda: True, "except")
            near = self.loops and self.loops[-1].frame in (self.frame, self.frame.back)
            if goes_on and own and near and self.is_work(met):
                self.see("goes on after an error", Call(handler, []), result=Value(name=met[0].meets))
            falls = one_of(falls, goes_on)
        last = self.block(node.finalbody) if node.finalbody else True
        return falls if last is True else last

    do_TryStar = do_Try

    def is_work(self, met: list) -> bool:
        """Whether what was tried computes, rather than loads or joins alone."""
        alone = ("load", "restore", "resume", "init", "setup", "save")
        for event in met:
            frame, names = event.frame, []
            while frame is not None and frame is not self.frame:
                names.append(frame.function.name.lower() if frame.function else "")
                frame = frame.back
            if not any(word in name for name in (*names, event.name) for word in alone):
                return True
        return False

    def errors(self, handler: ast.ExceptHandler) -> set[str]:
        """The last names of the errors that are caught."""
        if handler.type is None:
            return {""}
        parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        return {getattr(part, "attr", getattr(part, "id", "?")) for part in parts}

    def touches_own(self, body: list[ast.stmt], seen: list) -> bool:
        """Whether lines compute with what this rank alone has."""
        frames = [self.frame.locals]
        for line in body:
            for node in ast.walk(line):
                if isinstance(node, ast.Name):
                    value = next((names[node.id] for names in frames if node.id in names), None)
                    if value is not None and value.vary & OWN and not value.vary & UNKNOWN:
                        return True
        return False

    def do_With(self, node: ast.With | ast.AsyncWith) -> Falls:
        return self.with_items(node, 0)

    do_AsyncWith = do_With

    def with_items(self, node: ast.With | ast.AsyncWith, place: int) -> Falls:
        if place == len(node.items):
            return self.block(node.body)
        item = node.items[place]
        result: list[Falls] = []

        def go(value: Value) -> None:
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
            result.append(self.with_items(node, place + 1))

        manager = self.manager_of(item.context_expr)
        if isinstance(manager, Thing) and manager.kind == "own manager":
            self.through_own(manager, go)
        else:
            depth = len(self.contexts)
            self.contexts.append(manager)
            go(self.entered(manager))
            del self.contexts[depth:]
        return result[0] if result else True

    def manager_of(self, node: ast.expr) -> Value:
        return self.settle(self.value(node))

    # --- definitions ---

    def do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        function: Value = Function(node, self.frame, self.frame.source, self.frame.owner)
        marks = set()
        for expr in reversed(node.decorator_list):
            decorator = self.value(expr)
            if isinstance(decorator, Function) and isinstance(function, Function):
                inner = function
                function = self.call_value(decorator, Call(expr, [function]))
                function = function if isinstance(function, Function) else inner
            elif isinstance(decorator, Thing) and decorator.made is not None:
                continue
            else:
                marks.add(self.mark_of(expr, decorator))
        if isinstance(function, Function):
            function.marks = frozenset(marks) | function.marks
        self.store(self.frame.locals, node.name, function)

    do_AsyncFunctionDef = do_FunctionDef

    def mark_of(self, node: ast.expr, decorator: Value) -> str:
        """The last name of a package's decorator."""
        node = node.func if isinstance(node, ast.Call) else node
        inner = decorator.inner if isinstance(decorator, Thing) else None
        name = (
            inner.name
            if isinstance(inner, Lib)
            else decorator.name or getattr(node, "attr", getattr(node, "id", ""))
        )
        return name.rpartition(".")[2]

    def do_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self.value(base) for base in node.bases]
        frame = Frame(self.frame.source, self.frame, self.frame.back)
        frame.depth = self.frame.depth
        cls = Class(node, frame, self.frame.source, bases)
        frame.owner = cls
        cls.marks = frozenset(self.mark_of(expr, self.value(expr)) for expr in node.decorator_list)
        outer, self.frame = self.frame, frame
        self.block(node.body)
        self.frame = outer
        self.store(self.frame.locals, node.name, cls)

    def do_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        scope = self.frame.outer
        if isinstance(node, ast.Global):
            scope = self.frame
            while scope.outer is not None:
                scope = scope.outer
        for name in node.names:
            home = scope
            while (
                isinstance(node, ast.Nonlocal) and home is not None and name not in home.locals and home.outer
            ):
                home = home.outer
            if home is not None:
                self.frame.shared[name] = home.locals

    do_Nonlocal = do_Global

    # --- imports ---

    def do_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            whole = self.import_module(alias.name, 0)
            if alias.asname:
                self.store(self.frame.locals, alias.asname, whole or Lib(alias.name))
            else:
                first = alias.name.partition(".")[0]
                top = self.import_module(first, 0)
                self.store(self.frame.locals, first, top or Lib(first))

    def do_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = self.import_module(node.module or "", node.level)
        for alias in node.names:
            if alias.name == "*":
                for name, value in module.frame.locals.items() if module else ():
                    self.store(self.frame.locals, name, value)
                continue
            name = alias.asname or alias.name
            imported = self.imported(module, alias.name) if module else None
            if imported is None:
                imported = Lib(f"{'.' * node.level}{node.module or ''}.{alias.name}")
            self.store(self.frame.locals, name, imported)

    def imported(self, module: Module, name: str) -> Value | None:
        """A name of a module, or a module below it."""
        if name in module.frame.locals:
            return module.frame.locals[name]
        source = module.source
        if source.path is not None and (source.is_package or not source.path.is_file()):
            submodule = self.project.module(source, name, 1, self.main)
            if submodule is not None:
                return self.run_module(submodule)
        return None

    def import_module(self, name: str, level: int) -> Module | None:
        source = self.project.module(self.frame.source, name, level, self.main)
        return self.run_module(source) if source is not None else None
