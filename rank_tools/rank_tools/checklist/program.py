"""What one file says about itself: what a name is, where a function is called, and who comes to a line.

Nothing is executed, and no other file is read. What the file does not say is unknown.
"""

import ast
import re
from collections.abc import Iterator

from .source import Source

Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
ENVIRONMENT = {
    "RANK": "rank", "SLURM_PROCID": "rank", "LOCAL_RANK": "local rank", "SLURM_LOCALID": "local rank",
    "WORLD_SIZE": "world", "SLURM_NTASKS": "world", "LOCAL_WORLD_SIZE": "local world",
}  # fmt: skip
CALLS = {
    "get_rank": "rank", "get_local_rank": "local rank", "get_node_local_rank": "local rank",
    "get_world_size": "world", "device_count": "local world",
}  # fmt: skip
# Words in a condition that may choose a rank.
CHOOSING = re.compile(
    r"rank|main|master|primary|chief|leader|proc|local|gpu|device|dist|ddp|world|writer|worker|node|host"
    r"|parallel|single|zero|first|log|verbose|cuda"
)
# Functions that answer alike on all ranks, or for which it does not matter.
HARMLESS = {
    "len", "int", "float", "str", "bool", "isinstance", "hasattr", "getattr", "min", "max", "abs", "any",
    "all", "sum", "exists", "isfile", "isdir", "item", "get", "keys", "endswith", "startswith", "lower",
    "range", "round", "is_file", "join", "isfinite", "isnan",
}  # fmt: skip
PLAIN_DECORATORS = {"no_grad", "inference_mode", "record", "main", "staticmethod", "classmethod", "command"}
TOGETHER = {"init_process_group", "DistributedDataParallel", "DistributedSampler"}
CONSTANTS = (ast.Constant, ast.UnaryOp)  # as -1, where no launcher is
STARTERS = {"spawn", "start_processes", "Process"}
ON_ONE_MACHINE = re.compile(r"(^|[/\\])((tests?|bench\w*)[/\\]|(test|bench)\w*\.py$|\w+_test\.py$)")
FRAMEWORKS = {
    "accelerate", "bagua", "catalyst", "colossalai", "composer", "deepspeed", "detectron2", "fairscale",
    "fvcore", "horovod", "ignite", "lightning", "lightning_fabric", "megatron", "mmcv", "mmengine", "monai",
    "pytorch_lightning", "ray", "torch_xla", "torchrl", "transformer_engine",
}  # fmt: skip


class Program:
    """A file's syntax tree, and look-ups in it."""

    def __init__(self, source: Source) -> None:
        self.tree = source.tree
        self.nodes = list(ast.walk(self.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.imports = dict(imported(self.nodes))
        self.functions: dict[str, list[Function]] = {}
        for node in self.nodes:
            if isinstance(node, Function):
                self.functions.setdefault(node.name, []).append(node)
        self.classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        self.values: dict[tuple[ast.AST | None, str], list[ast.expr | None]] = {}
        for node in self.nodes:
            for target, value in bindings(node):
                self._bind(target, value)
        sagemaker = any(text_of(node).startswith("SM_") for node in self.nodes)  # each host has its folder
        packages = {name.partition(".")[0] for name in self.imports.values()}
        called = {last(self.name(call)) for call in self.calls}
        if called.isdisjoint({"Accelerator", "PartialState"}):
            packages.discard("accelerate")  # a helper of it, in a loop of one's own
        self.managed = sagemaker or not FRAMEWORKS.isdisjoint(packages)
        self.together = not called.isdisjoint(TOGETHER)
        self.starts = bool(called & STARTERS)
        # It starts its processes itself, or it is a test: then it may know of one machine alone.
        self.one_machine = self.starts or bool(ON_ONE_MACHINE.search(source.path))
        joins = [argument(call, "rank", 4) for call in self.named("init_process_group")]
        self.joins_locally = any(self.role(rank) == "local rank" for rank in joins)
        self.wraps = list(self.named("fully_shard", "FullyShardedDataParallel"))
        self.attributes = {node.attr for node in self.nodes if isinstance(node, ast.Attribute)}

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            unpacked = [ast.Starred(value=value, ctx=ast.Load())] * len(target.elts)  # type: ignore[arg-type]
            same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            for inner, part in zip(target.elts, value.elts if same else unpacked, strict=True):  # type: ignore
                self._bind(inner, part)
        elif dotted(target):
            scope = self.scope(target) if isinstance(target, ast.Name) else None
            self.values.setdefault((scope, dotted(target)), []).append(value)

    def name(self, call: ast.AST) -> str:
        """The dotted name of what is called, as it is imported: ``torch.distributed.barrier``."""
        text = dotted(call.func if isinstance(call, ast.Call) else call)
        first, dot, rest = text.partition(".")
        return self.imports.get(first, first) + dot + rest

    def named(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions and classes of torch with one of these last names."""
        for call in self.calls:
            name = self.name(call)
            if last(name) in names and name.startswith("torch."):
                yield call

    def scope(self, node: ast.AST) -> ast.AST:
        """The function or module around a node."""
        node = self.parents.get(node, self.tree)
        while not isinstance(node, SCOPES):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> Function | None:
        """The function with a name around a node; None at the level of the module."""
        scope = self.scope(node)
        while isinstance(scope, ast.Lambda):
            scope = self.scope(scope)
        return scope if isinstance(scope, Function) else None

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class around a node."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.ClassDef):
                return node
        return None

    def owner(self, use: ast.AST, name: str) -> ast.AST:
        """The function or module whose name a use means."""
        scope = self.scope(use)
        while not isinstance(scope, ast.Module):
            if (scope, name) in self.values or isinstance(scope, Function) and name in parameters(scope):
                break
            scope = self.scope(scope)
        return scope

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(child, parent) from a node up to its function or module."""
        while node in self.parents:
            yield node, self.parents[node]
            node = self.parents[node]
            if isinstance(node, Function):
                return

    def loops(self, node: ast.AST) -> list[ast.For | ast.AsyncFor | ast.While]:
        """The loops around a node in its function, the inner first; not one whose head it stands in."""
        pairs = [(child, parent) for child, parent in self.above(node) if isinstance(parent, LOOPS)]
        return [parent for child, parent in pairs if child is not getattr(parent, "iter", None)]

    def assigned(self, node: ast.AST) -> list[ast.expr | None]:
        """What a name or an attribute is set to in the file; None stands for what is not known."""
        text = dotted(node)
        if not isinstance(node, ast.Name):
            return self.values.get((None, text), [])
        scope = self.owner(node, text)
        if (scope, text) not in self.values and isinstance(scope, Function):
            return self.arguments(scope, text)
        return self.values.get((scope, text), [])

    def arguments(self, function: Function, name: str) -> list[ast.expr | None]:
        """What a parameter is given at the calls in the file; None where that is not seen."""
        names = parameters(function)
        bound = bool(names) and names[0] in ("self", "cls")
        place = names.index(name) - bound
        given = []
        for call in self.sites(function):
            direct = last(self.name(call)) in (function.name, self._class_of(function))
            given.append(argument(call, name, place) if direct and place >= 0 else None)
        return given or [None]

    def _class_of(self, function: Function) -> str:
        parent = self.parents.get(function)
        return parent.name if isinstance(parent, ast.ClassDef) and function.name == "__init__" else ""

    def sites(self, function: Function) -> list[ast.Call]:
        """Where a function is called or handed over; none if two have its name."""
        if function.name != "__init__" and len(self.functions[function.name]) > 1:
            return []
        wanted = self._class_of(function) or function.name
        found = []
        for call in self.calls:
            given = wanted in map(dotted, [*call.args, *(keyword.value for keyword in call.keywords)])
            own = dotted(call.func).partition(".")[0] not in self.imports
            if given or own and last(dotted(call.func)) == wanted:
                found.append(call)
        return found

    def target(self, node: ast.AST) -> tuple[str, ast.AST]:
        """(name or ``self.name``, the function, class or module that knows it) that a value is set to."""
        parent = self.parents[node]
        while isinstance(parent, ast.IfExp):
            parent = self.parents[parent]
        text = dotted(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
        scope = self.scope(parent)
        while text.startswith("self.") and not isinstance(scope, ast.ClassDef | ast.Module):
            scope = self.parents[scope]
        return text if text.count(".") == text.startswith("self.") else "", scope

    def uses(self, name: str, scope: ast.AST) -> list[ast.AST]:
        """Where a name is read in a function, class or module."""
        names = [node for node in ast.walk(scope) if isinstance(node, ast.Name | ast.Attribute)]
        return [node for node in names if isinstance(node.ctx, ast.Load) and dotted(node) == name]

    def role(self, node: ast.AST | None, depth: int = 0) -> str:
        """``rank``, ``local rank``, ``world``, ``local world``, or "" for anything else."""
        if node is None or depth > 6:
            return ""
        if isinstance(node, ast.Subscript) and self.name(node.value) == "os.environ":
            return ENVIRONMENT.get(text_of(node.slice), "")
        if isinstance(node, ast.Call):
            name = self.name(node)
            if name in ("os.getenv", "os.environ.get") and node.args:
                return ENVIRONMENT.get(text_of(node.args[0]), "")
            if name == "int" and node.args:
                return self.role(node.args[0], depth + 1)
            own = self.functions.get(name, [])
            if len(own) == 1:  # of this file: what it returns
                results = [one.value for one in ast.walk(own[0]) if isinstance(one, ast.Return)]
                return self._same(results, depth)
            if last(name) == "get_local_rank" and "." in name and not name.startswith("torch."):
                return ""  # of another library, where it may be the global one
            return CALLS.get(last(name), "") if not node.args and not node.keywords else ""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return "local rank" if self.role(node.left, depth + 1) == "rank" else ""
        if isinstance(node, ast.IfExp):
            return self._same([node.body, node.orelse], depth)
        values = self.assigned(node)
        if not values and isinstance(node, ast.Attribute) and node.attr == "local_rank":
            return "local rank"  # an option that the launcher sets
        return self._same(values, depth) if isinstance(node, ast.Name | ast.Attribute) else ""

    def _same(self, values: list[ast.expr | None], depth: int) -> str:
        roles = {self.role(value, depth + 1) for value in values if not isinstance(value, CONSTANTS)}
        return roles.pop() if len(roles) == 1 else ""

    def parts(self, node: ast.AST, depth: int = 4, seen: set | None = None) -> Iterator[ast.AST | None]:
        """The nodes of an expression, and of what its variables are set to; None for what is not known."""
        seen = set() if seen is None else seen
        for part in [one for one in ast.walk(node) if one not in seen]:
            seen.add(part)
            yield part
            if depth and isinstance(part, ast.Name | ast.Attribute) and dotted(part) and part in self.parents:
                for value in self.assigned(part):
                    yield from [None] if value is None else self.parts(value, depth - 1, seen)

    def words(self, node: ast.AST, depth: int = 9) -> set[str]:
        """All names and strings in an expression, and in what they are set to; "?" for what is not known."""
        found = set()
        for part in self.parts(node, depth):
            if isinstance(part, ast.Name | ast.Attribute):
                found.add(last(dotted(part) or part.attr).lower())  # type: ignore[union-attr]
            elif part is None or isinstance(
                part, ast.Starred
            ):  # a part of it is meant, which one is not known
                found.add("?")
            else:
                found.add(text_of(part).lower())
        return found - {""}

    def guards(self, node: ast.AST) -> Iterator[ast.expr]:
        """The conditions in its function that decide whether a run comes to a node."""
        for child, parent in self.above(node):
            if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
                yield parent.test
            elif isinstance(parent, ast.BoolOp):
                yield from parent.values[: parent.values.index(child)]  # type: ignore[arg-type]
            elif isinstance(parent, ast.With | ast.AsyncWith):
                yield from (item.context_expr for item in parent.items)
            elif isinstance(parent, ast.ExceptHandler):
                yield ast.Name(id="rank", ctx=ast.Load())  # an error comes to some ranks
            for block in ("body", "orelse", "handlers", "finalbody"):
                statements = getattr(parent, block, [])
                if isinstance(statements, list) and child in statements:
                    earlier = statements[: statements.index(child)]
                    yield from (one.test for one in earlier if isinstance(one, ast.If) and leaves(one))

    def chooses(self, test: ast.expr) -> bool:
        """Whether a condition may hold on some ranks only; also if the file does not say."""
        if isinstance(test, ast.Compare) and dotted(test.left) == "__name__":
            return False
        words = self.words(test)
        called = {last(dotted(part.func)) for part in ast.walk(test) if isinstance(part, ast.Call)}
        return not called <= HARMLESS or "?" in words or any(CHOOSING.search(word) for word in words)

    def everyone(self, node: ast.AST, seen: tuple[ast.AST, ...] = (), started: bool = False) -> bool:
        """Whether the file shows a way by which every rank comes to a node."""
        if any(self.chooses(test) for test in self.guards(node)):
            return False
        function = self.function(node)
        if function is None:
            return started or not self.starts
        marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in function.decorator_list]
        if function in seen or any(last(dotted(mark)) not in PLAIN_DECORATORS for mark in marks):
            return False
        return any(
            self.everyone(site, (*seen, function), started or last(self.name(site)) in STARTERS)
            for site in self.sites(function)
        )

    def before(self, first: ast.Call, second: ast.Call) -> bool:
        """Whether two calls stand in one function in this order, and one run can come to both."""
        together = self.scope(first) is self.scope(second) and first.lineno < second.lineno
        return together and not self.exclude(first, second)

    def goes_backward(self, node: ast.AST, depth: int = 0) -> bool:
        """Whether ``backward()`` is called there, also by functions of the file."""
        for call in [part for part in ast.walk(node) if isinstance(part, ast.Call)]:
            functions = self.functions.get(last(dotted(call.func)), []) if depth < 3 else []
            if is_method(call, "backward") or any(self.goes_backward(one, depth + 1) for one in functions):
                return True
        return False

    def exclude(self, first: ast.AST, second: ast.AST) -> bool:
        """Whether two nodes of a function stand in different branches of one condition."""
        sides = {parent: child for child, parent in self.above(first) if isinstance(parent, ast.If)}
        for child, parent in self.above(second):
            if parent in sides:
                one = sides[parent] in parent.orelse
                if one != (child in parent.orelse):
                    return True
        return False


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a name or an attribute; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def last(name: str) -> str:
    return name.rpartition(".")[2]


def imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """(name in the file, dotted name of what it is)."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}"


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """(target, value) of what a node sets; of a ``with`` only the words of the value count."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, ast.Starred(value=node.context_expr, ctx=ast.Load())


def is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def parameters(function: Function) -> list[str]:
    given = function.args
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """What a call gives to a parameter; None if that is not seen."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    plain = not any(isinstance(one, ast.Starred) for one in call.args)
    return call.args[place] if plain and 0 <= place < len(call.args) else None


def text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def leaves(branch: ast.If) -> bool:
    """Whether what follows a condition is skipped where it holds."""
    end = branch.body[-1]
    if isinstance(end, ast.Expr) and isinstance(end.value, ast.Call):
        return last(dotted(end.value.func)) in ("exit", "_exit", "spawn")
    return isinstance(end, ast.Return | ast.Raise | ast.Continue | ast.Break)
