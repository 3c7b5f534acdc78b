"""Goes through a script as Python would, without running it: into its functions, methods and modules."""

import ast
from collections.abc import Callable

from .conditions import Condition, Leaf, both, negate
from .library import Library
from .names import role_of_name, words
from .sources import Project, Source
from .state import Call, Frame
from .statements import MOST_FRAMES, MOST_NODES, Statements
from .values import (
    DIFFERS,
    OWN,
    RANK,
    ROUND,
    UNKNOWN,
    Choice,
    Class,
    Const,
    Function,
    Items,
    Lib,
    Method,
    Module,
    Pairs,
    Role,
    Thing,
    Value,
    join,
)

STEPS_PER_LINE = 60
LEAST_STEPS = 200_000
MODELS = words("Module LightningModule Sequential ModuleList PreTrainedModel ModelMixin PyTorchModelHubMixin")
OF_ONE_RANK = words("""
    rank_zero_only on_main_process master_only main_process_only rank0_only main_only only_on_rank_0
    rank_zero main_process only_main_process
    """)
KINDS = {  # of a class of the script, by the class of a package that it inherits from
    "DistributedDataParallel": "ddp",
    "FullyShardedDataParallel": "fsdp",
    "DistributedSampler": "sampler",
    "DataLoader": "loader",
    "IterableDataset": "stream",
    "Dataset": "dataset",
    "Optimizer": "optimizer",
    "GradScaler": "scaler",
}


class Machine(Statements, Library):
    """All that happens in one script, as ``events``."""

    def __init__(self, project: Project, main: Source) -> None:
        super().__init__(project, main)
        self.modules: dict[int, Module] = {}
        self.entered_nodes: set[ast.AST] = set()
        self.limit = LEAST_STEPS + STEPS_PER_LINE * main.lines
        self.active: list[ast.AST] = []
        self.sizes: dict[ast.AST, int] = {}

    def run(self) -> None:
        """The file itself, and then what nobody has called."""
        self.run_module(self.main)
        self.run_uncalled()
        if self.launches:  # what matters happens in the processes that are started
            self.events = [event for event in self.events if event.launched]
            self.named.clear()
            for event in self.events:
                self.named.setdefault(event.name, []).append(event)

    def run_module(self, source: Source) -> Module:
        known = self.modules.get(id(source))
        if known is None:
            frame = Frame(source, None, self.frame if self.modules else None)
            frame.depth = self.frame.depth + 1 if self.modules else 0
            known = self.modules[id(source)] = Module(source, frame)
            self.limit += STEPS_PER_LINE * source.lines if source is not self.main else 0
            place = (self.frame, self.guards, self.known, self.loops, self.contexts, self.logs)
            self.frame, self.guards, self.loops, self.contexts, self.logs = frame, [], [], [], []
            exits = len(self.exits)
            self.block(source.tree.body)
            if source is not self.main:
                del self.exits[exits:]
            self.frame, self.guards, self.known, self.loops, self.contexts, self.logs = place
        return known

    # --- what nobody calls ---

    def run_uncalled(self) -> None:
        """Functions and methods of the file that nothing seen has called; their arguments are unknown."""
        self.uncalled = True
        frame = self.modules[id(self.main)].frame
        self.frame = frame
        mentioned = {node.id for node in ast.walk(self.main.tree) if isinstance(node, ast.Name)}
        for value in list(frame.locals.values()):
            if (
                isinstance(value, Function)
                and value.source is self.main
                and value.body not in self.entered_nodes
            ):
                if value.name not in mentioned:
                    self.call_value(value, Call(value.body, []))
            elif isinstance(value, Class) and value.source is self.main:
                self.run_class(value, value.name in mentioned)
        self.uncalled = False

    def run_class(self, kind: Class, mentioned: bool) -> None:
        made = next((thing for thing in self.made if thing.made is kind), None)
        if made is None:
            if mentioned and not (set(KINDS) | set(MODELS)) & kind.packages():
                return
            made = self.instantiate(kind, Call(kind.body, []))
        for name, value in list(kind.frame.locals.items()):
            if isinstance(value, Function) and value.body not in self.entered_nodes and name != "__init__":
                self.call_value(value.of(made), Call(value.body, []))

    # --- calls ---

    def value_Call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            receiver = self.value(node.func.value)
            if isinstance(receiver, Lib) and receiver.name == "builtins.super()":
                return self.call_super(node)
            return self.call_method(self.settle(receiver), node.func.attr, self.arguments(node))
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return Lib("builtins.super()")
        callee = self.value(node.func)
        return self.call_value(callee, self.arguments(node))

    def arguments(self, node: ast.Call) -> Call:
        args: list[Value] = []
        keywords: dict[str, Value] = {}
        more = False
        for arg in node.args:
            value = self.value(arg)
            if isinstance(arg, ast.Starred):
                if isinstance(value, Items) and not value.more:
                    args += value.items
                else:
                    more = True
                    if value.vary or value.src:
                        keywords["*"] = value
            else:
                args.append(value)
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg:
                keywords[keyword.arg] = value
            elif isinstance(value, Pairs):
                keywords.update({"**" if key is ... else str(key): part for key, part in value.items.items()})
                more = more or ... in value.items
            else:
                keywords["**"] = value
                more = True
        return Call(node, args, keywords, more)

    def call_value(self, callee: Value, call: Call) -> Value:
        if isinstance(callee, Choice):
            return self.call_each(callee, lambda value: self.call_value(value, call), call.node)
        if isinstance(callee, Function):
            return self.enter(callee, call)
        if isinstance(callee, Class):
            return self.instantiate(callee, call)
        if isinstance(callee, Lib):
            return self.call_library(callee.name, call)
        if isinstance(callee, Method):
            return self.call_method(callee.of, callee.name, call)
        if isinstance(callee, Thing):
            return self.call_thing(callee, call)
        if isinstance(callee, Const | Items | Pairs):
            return Value()
        return self.forward(callee, call)

    def call_each(self, of: Choice, do: Callable[[Value], Value], node: ast.AST) -> Value:
        """Call whichever it is, each under its own condition."""
        choices: list[tuple[Condition, Value]] = []
        for way, value in of.choices:
            way = self.now(way)
            if way is False or (isinstance(value, Const) and value.data is None):
                continue
            undo = self.push(way, node, "choice")
            choices.append((way, do(value)))
            self.pop(undo)
        return self.choice(choices) if choices else Value()

    def call_thing(self, of: Thing, call: Call) -> Value:
        if of.kind == "partial":
            return self.call_value(
                of.inner or Value(),
                Call(
                    call.node,
                    [*of.call.args[1:], *call.args],
                    {**of.call.keywords, **call.keywords},
                    call.more,
                ),
            )
        if of.made is not None:
            if of.kind in ("instance", "dataset"):
                result = self.own_method(of, "__call__", call)
                if result is not None:
                    return result
            if of.kind in ("instance", "module") and not of.note("wrapper"):
                return self.forward(of, call, inner=True)
        return self.forward(of, call)

    def call_method(self, of: Value, name: str, call: Call) -> Value:
        if isinstance(of, Choice):
            return self.call_each(of, lambda value: self.call_method(value, name, call), call.node)
        if isinstance(of, Lib):
            return self.call_library(f"{of.name}.{name}", call)
        if isinstance(of, Module | Class):
            return self.call_value(self.attribute(of, name), call)
        if isinstance(of, Thing) and of.made is not None:
            result = self.own_method(of, name, call)
            if result is not None:
                return result
        stored = of.attrs.get(name) if of.attrs else None
        is_itself = isinstance(stored, Method) and stored.of is of  # opt.step = torch.compile(opt.step)
        if stored is not None and not is_itself and not isinstance(of, Items | Pairs):
            return self.call_value(stored, call)
        return self.call_object(of, name, call)

    def own_method(self, of: Thing, name: str, call: Call) -> Value | None:
        """Call a method of a class of the script; None if it has none of that name."""
        method = self.member(of.made, name) if of.made is not None else None
        if isinstance(method, Function) and method.body not in self.active[-12:]:
            return self.enter(self.bound(method, of), call)
        return None

    def bound(self, function: Function, of: Value) -> Function:
        if "staticmethod" in function.marks:
            return function
        return function.of(
            of.made if "classmethod" in function.marks and isinstance(of, Thing) and of.made else of
        )

    def member(self, kind: Class, name: str, after: Class | None = None) -> Value | None:
        """A name in the body of a class, or of one it inherits from."""
        for cls in kind.family():
            if after is not None:
                after = None if cls is after else after
            elif name in cls.frame.locals:
                return cls.frame.locals[name]
        return None

    def call_super(self, node: ast.Call) -> Value:
        assert isinstance(node.func, ast.Attribute)
        call = self.arguments(node)
        frame = self.frame
        while frame.function is None and frame.outer is not None:
            frame = frame.outer
        function = frame.function
        of = function.bound if function is not None else None
        if isinstance(of, Thing) and of.made is not None and isinstance(function.owner, Class):
            method = self.member(of.made, node.func.attr, function.owner)
            if isinstance(method, Function) and method.body not in self.active[-12:]:
                return self.enter(self.bound(method, of), call)
            if node.func.attr == "__init__":
                if of.kind in ("ddp", "fsdp") and call.args:
                    self.wrap(of, call)
                elif of.call is not None and of.kind in ("sampler", "loader"):
                    of.call = call
                return Const(None)
            return self.call_object(of, node.func.attr, call)
        return Value()

    def instantiate(self, kind: Class, call: Call) -> Thing:
        packages = kind.packages()
        what = next((KINDS[base] for base in KINDS if base in packages), "instance")
        if packages & set(MODELS):
            what = "module"
        made = Thing(what, call.node, call, made=kind)
        made.vary = join(call.given()) & (RANK | OWN) if what in ("dataset", "stream", "subset") else 0
        self.made.append(made)
        before = self.norms
        if "dataclass" in kind.marks or "NamedTuple" in packages:
            self.fill_fields(kind, made, call)
        init = self.member(kind, "__init__")
        if isinstance(init, Function):
            self.enter(init.of(made), call)
        post = self.member(kind, "__post_init__")
        if isinstance(post, Function):
            self.enter(post.of(made), Call(call.node, []))
        if self.norms > before:
            made.mark(norm=True)
        return made

    def fill_fields(self, kind: Class, made: Thing, call: Call) -> None:
        place = 0
        for statement in [line for part in reversed(list(kind.family())) for line in part.body.body]:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                given = call.get(name, place)
                if given is None:
                    default = kind.frame.locals.get(name)
                    given = self.hinted(name)  # it may be set later, from a file or the command line
                    if type(given) is Value and isinstance(default, Const):
                        given.mark(default=default)
                made.own()[name] = given
                place += 1

    # --- functions ---

    def enter(self, function: Function, call: Call) -> Value:
        """What a function of the script returns."""
        if set(OF_ONE_RANK) & function.marks:
            undo = self.push(Leaf("one", 0), call.node, "if")
            result = self.run_function(function, call)
            self.pop(undo)
            return result
        if "contextmanager" in function.marks or "asynccontextmanager" in function.marks:
            return Thing("own manager", call.node, call, inner=function)
        return self.run_function(function, call)

    def run_function(
        self, function: Function, call: Call, then: Callable[[Value], None] | None = None
    ) -> Value:
        body = function.body
        self.times[body] += 1
        if self.is_too_much(body):
            result = self.mixed(call.given())
            result.vary |= UNKNOWN
            return result
        self.entered_nodes.add(body)
        frame = Frame(function.source, function.frame, self.frame)
        frame.call, frame.function, frame.then = call.node, function, then
        self.bind(function, call, frame)
        outer, self.frame = self.frame, frame
        self.active.append(body)
        exits, base, self.frame_base = len(self.exits), self.frame_base, len(self.guards)
        depth = len(self.contexts)
        self.contexts += [
            Lib(mark) for mark in function.marks if mark in ("no_grad", "inference_mode", "join")
        ]
        if isinstance(body, ast.Lambda):
            result = self.value(body.body)
        else:
            falls = self.block(body.body)
            result = self.returned(frame, falls is True)
        del self.contexts[depth:]
        self.exits[exits:] = [way_out for way_out in self.exits[exits:] if way_out.kind in ("exit", "raise")]
        self.frame_base = base
        self.active.pop()
        self.frame = outer
        return result

    def is_too_much(self, body: ast.AST) -> bool:
        """Whether a function is entered no more: it calls itself, or was entered often enough."""
        if body in self.active or len(self.active) > MOST_FRAMES:
            return True
        if body not in self.sizes:
            self.sizes[body] = sum(1 for _ in ast.walk(body))
        times = self.times[body]
        return times > 2 and times * self.sizes[body] > MOST_NODES or times > 1 and self.steps > self.limit

    def returned(self, frame: Frame, falls: bool) -> Value:
        if frame.yielded:
            iterator = Thing("iterator", frame.call)
            iterator.mark(loaders=[event.of for event in self.named["iterate"] if event.frame is frame])
            iterator.mark(
                item=self.choice(
                    [
                        (Leaf("option", ("yield", number)), value)
                        for number, value in enumerate(frame.yielded[:4])
                    ]
                )
            )
            iterator.vary = join(frame.yielded)
            return iterator
        returns = frame.returns
        if len(returns) == 1 and not falls:
            return returns[0][1]
        rest: Condition = True
        for way, _ in returns:
            rest = both(rest, negate(way))
        if falls:
            returns = [*returns, (rest, Const(None))]
        return self.choice(returns) if returns else Const(None)

    def bind(self, function: Function, call: Call, frame: Frame) -> None:
        """The names of the arguments."""
        spec = function.body.args
        names = [parameter.arg for parameter in (*spec.posonlyargs, *spec.args)]
        args = list(call.args)
        if function.bound is not None:
            args.insert(0, function.bound)
        frame.locals.update(zip(names, args, strict=False))
        if spec.vararg:
            frame.locals[spec.vararg.arg] = Items(args[len(names) :], call.more)
        known = {*names, *(parameter.arg for parameter in spec.kwonlyargs)}
        rest: dict[object, Value] = {}
        for name, value in call.keywords.items():
            if name in known:
                frame.locals[name] = value
            elif name == "**":
                rest[...] = value
            elif name != "*":
                rest[name] = value
        if spec.kwarg:
            if call.more:
                rest.setdefault(..., Value())
            frame.locals[spec.kwarg.arg] = Pairs(rest)
        defaults = dict(zip(reversed(names), reversed(spec.defaults), strict=False))
        defaults |= {
            parameter.arg: default
            for parameter, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
            if default
        }
        self.fill_arguments(function, call, frame, known, defaults)

    def fill_arguments(
        self, function: Function, call: Call, frame: Frame, known: set, defaults: dict
    ) -> None:
        """What is not given, or not known, by its name."""
        of_adapter = any("alpha" in name or "lora" in name for name in known)  # whose rank is no process's
        for name in known:
            value = frame.locals.get(name)
            if value is None:
                default = self.default_of(function, name, defaults.get(name), call)
                frame.locals[name] = Value(name=name) if of_adapter and isinstance(default, Role) else default
            elif (
                type(value) is Value
                and not value.vary & DIFFERS
                and value.test is None
                and role_of_name(name)
            ):
                frame.locals[name] = value if of_adapter else self.hinted(name)
            elif type(value) is Value and not value.name:
                value.name = name

    def default_of(self, function: Function, name: str, default: ast.expr | None, call: Call) -> Value:
        if default is None or call.more or (self.uncalled and isinstance(call.node, ast.FunctionDef)):
            value = self.hinted(name)  # it may get something else
            if type(value) is Value and isinstance(default, ast.Constant):
                value.mark(default=Const(default.value))
            return value
        if isinstance(default, ast.Constant):
            return Const(default.value)
        outer, self.frame = self.frame, function.frame
        value = self.value(default)
        self.frame = outer
        return value

    # --- `with` and `for` ---

    def through_own(self, manager: Thing, go: Callable[[Value], None]) -> None:
        function = manager.inner
        assert isinstance(function, Function)
        outer = self.frame
        base = self.frame_base
        active = list(self.active)
        went: list[bool] = []

        def then(value: Value) -> None:
            inner, inner_base, inner_active = self.frame, self.frame_base, self.active
            self.frame, self.frame_base, self.active = outer, base, active
            depth = len(self.contexts)
            self.contexts.append(manager)
            went.append(True)
            go(value)
            del self.contexts[depth:]
            self.frame, self.frame_base, self.active = inner, inner_base, inner_active

        self.run_function(function, manager.call, then)
        if not went:
            go(Value())

    def entered(self, manager: Value) -> Value:
        """What ``with ... as`` gets."""
        if isinstance(manager, Thing) and manager.made is not None:
            result = self.own_method(manager, "__enter__", Call(manager.node or ast.Pass(), []))
            return manager if result is None else result
        return manager

    def item_of(self, over: Value, node: ast.AST) -> Value:
        """What a loop gets from it, anew in each round."""
        if isinstance(over, Choice):
            return self.choice([(way, self.item_of(value, node)) for way, value in over.choices])
        if isinstance(over, Items):
            if not over.items:
                return Value(vary=over.vary | ROUND)
            if len(over.items) == 1 and not over.more:
                return over.items[0]
            return self.choice(
                [
                    (Leaf("option", ("item", over.key, place)), value)
                    for place, value in enumerate(over.items[:6])
                ]
            )
        if isinstance(over, Pairs):
            return Value(vary=ROUND)
        if isinstance(over, Thing):
            item = self.item_of_thing(over, node)
            if item is not None:
                return item
        item = Value(vary=over.vary | ROUND, src=over.src, name=over.name if over.vary & DIFFERS else "")
        if over.vary & OWN:
            item.mark(batch=True)
        return item
