"""A Python script as a tree: full names, what a name stands for, who calls whom. Taught in lesson 10."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from .files import Definition, Files, Function, Module

# `x.to(device)`, `torch.compile(x)`, `accelerator.prepare(x)`: the same thing, seen from far enough.
SAME_THING = (
    "to",
    "cuda",
    "cpu",
    "float",
    "double",
    "train",
    "eval",
    "compile",
    "manual_seed",
    "int",
    "detach",
    "clone",
    "item",
    "contiguous",
    "requires_grad_",
    "float64",
    "half",
    "bfloat16",
)
LIBRARIES = ("torch", "torchvision", "shared", "tqdm", "accelerate", "apex")
MOST_ORIGINS = 3000  # what a value may stand for is followed this far
MOST_DEPTH = 12  # of questions that ask others
MOST_NESTED = 40

Scope = ast.AST | None


class Script:
    """A script that is read, never run, with the parts of the modules beside it that it uses.

    ``nodes``, ``calls`` and ``functions`` are those of the whole script, and of the functions and classes
    of its own modules that it mentions, directly or through others.
    """

    def __init__(self, source: str | bytes, path: Path | None = None) -> None:
        self.main = Module(source, path)
        self.files = Files(self.main)
        self.tree = self.main.tree
        self.nodes: list[ast.AST] = []
        self._module_of_tree: dict[ast.AST, Module] = {self.tree: self.main}
        self._module: dict[ast.AST, Module] = {}
        self.values: dict[tuple[Scope, str], list[ast.expr]] = {}  # {(scope, name): what is assigned to it}
        self._made_parents: dict[ast.AST, ast.AST] = {}  # of nodes that stand in no file
        self._follow()
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.functions = [node for node in self.nodes if isinstance(node, Function)]
        self._names = {call: self.name(call.func) for call in self.calls}
        self.library = {call: self._library(name) for call, name in self._names.items()}
        self._scopes: dict[ast.AST, Function | None] = {}
        self._depth = 0
        self._nested = 0
        self._next: dict[ast.AST, Sequence[ast.AST]] = {}
        self._origins: dict[tuple[ast.AST, bool], list[ast.AST]] = {}
        self._entered: dict[ast.Call, list[Function]] = {}
        self._returns: dict[Function, list[ast.expr]] = {}
        self._remembered: dict[str, dict] = {}
        self._note_everything()

    # --- what belongs to the script ---

    def _follow(self) -> None:
        """Collect the nodes: all of the script, and each definition elsewhere that they mention."""
        taken: set[ast.AST] = {self.tree}
        todo: list[tuple[ast.AST, Module]] = [(self.tree, self.main)]
        while todo:
            root, module = todo.pop()
            for node in ast.walk(root):
                if node in self._module:
                    continue
                self._module[node] = module
                self.nodes.append(node)
                if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                    for definition, home in self._mentioned(node, module):
                        if definition not in taken and home is not self.main:
                            taken.add(definition)
                            todo.append((definition, home))

    def _mentioned(self, node: ast.expr, module: Module) -> list[tuple[Definition, Module]]:
        found = self._look_up(node, module)
        if not isinstance(found, list):
            return []
        homes = [one for one in self.files.modules if found and found[0] in one.parents]
        return [(one, homes[0]) for one in found] if homes else []

    def _look_up(self, node: ast.AST, module: Module) -> Module | list[Definition] | None:
        """The definitions that a name or a dotted name stands for, or the module."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        found = self.files.look_up(module, node.id)
        for name in reversed(names):
            if not isinstance(found, Module):
                return None
            found = self.files.attribute(found, name)
        return found

    def module_of(self, node: ast.AST) -> Module:
        while node not in self._module and node in self._made_parents:
            node = self._made_parents[node]
        return self._module.get(node, self.main)

    def is_main(self, node: ast.AST) -> bool:
        return self.module_of(node) is self.main

    def remembered(self, what: str) -> dict:
        """A place for answers that were found once."""
        return self._remembered.setdefault(what, {})

    # --- names ---

    def name(self, node: ast.AST) -> str:
        """The dotted name, imports undone: ``torch.distributed.all_reduce`` for ``dist.all_reduce``."""
        parts = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        base = inner.id if isinstance(inner, ast.Name) else ""
        source = self.module_of(inner).imported.get(base)
        if source is not None and not source.level:
            base = f"{source.module}.{source.name}" if source.name else source.module
        return ".".join([base, *reversed(parts)])

    def call_name(self, call: ast.Call) -> str:
        return self._names.get(call) or self.name(call.func)

    @staticmethod
    def _library(name: str) -> str:
        first, _, rest = name.partition(".")
        return rest.rpartition(".")[2] if first in LIBRARIES else ""

    def find(self, *names: str, among: list[ast.Call] | None = None) -> list[ast.Call]:
        """Calls of what bears one of these names and comes from a known library."""
        return [call for call in (self.calls if among is None else among) if self.library.get(call) in names]

    def imports(self, *packages: str) -> bool:
        """Whether a file of the script imports one of these packages."""
        sources = [one for module in self.files.modules for one in module.imported.values()]
        return any(one.module.partition(".")[0] in packages and not one.level for one in sources)

    # --- places ---

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around this one, the innermost first."""
        parents = self.module_of(node).parents
        while True:
            around = parents.get(node) or self._made_parents.get(node)
            if around is None:
                return
            yield around
            node = around

    def parent(self, node: ast.AST) -> ast.AST | None:
        return next(self.above(node), None)

    def function_of(self, node: ast.AST) -> Function | None:
        if node not in self._scopes:
            self._scopes[node] = next((one for one in self.above(node) if isinstance(one, Function)), None)
        return self._scopes[node]

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        return next((one for one in self.above(node) if isinstance(one, ast.ClassDef)), None)

    # --- what a value may be ---

    def origins(self, node: ast.AST, deep: bool = False) -> list[ast.AST]:
        """``node`` and all that it may stand for, through names, arguments and results of functions.

        With ``deep`` also what its parts stand for.
        """
        if (node, deep) not in self._origins:
            if self._depth > MOST_DEPTH:
                return [node]
            self._depth += 1
            self._origins[node, deep] = [node]  # it may be asked for again on the way
            found: dict[ast.AST, None] = {}
            todo = [node]
            while todo and len(found) < MOST_ORIGINS:
                one = todo.pop()
                if one not in found:
                    found[one] = None
                    todo += self._stands_for(one)
                    if deep:
                        todo += ast.iter_child_nodes(one)
            self._origins[node, deep] = list(found)
            self._depth -= 1
        return self._origins[node, deep]

    def _stands_for(self, node: ast.AST) -> Sequence[ast.AST]:
        """One step of ``origins``."""
        if isinstance(
            node, ast.Name | ast.Attribute | ast.IfExp | ast.NamedExpr | ast.BoolOp | ast.Call | ast.Subscript
        ):
            if node not in self._next:
                if self._nested > MOST_NESTED:
                    return []
                self._next[node] = []  # it may be asked for again on the way
                self._nested += 1
                self._next[node] = self._step(node)
                self._nested -= 1
            return self._next[node]
        return []

    def _step(self, node: ast.AST) -> Sequence[ast.AST]:
        if isinstance(node, ast.Name):
            return self._assigned_to(node)
        if isinstance(node, ast.Attribute):
            return self._assigned_to_attribute(node)
        if isinstance(node, ast.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, ast.NamedExpr):
            return [node.value]
        if isinstance(node, ast.BoolOp):
            return node.values
        if isinstance(node, ast.Call):
            return self._returned_by(node)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._elements(node.value, node.slice.value)
        return []

    def _assigned_to(self, node: ast.Name) -> list[ast.expr]:
        """Of the innermost function around it that assigns to the name, else of its file."""
        scope = self.function_of(node)
        while scope is not None:
            if (scope, node.id) in self.values:
                return self._by_then(node, self.values[scope, node.id])
            scope = self.function_of(scope)
        module = self.module_of(node)
        if (module.tree, node.id) in self.values:
            return self._by_then(node, self.values[module.tree, node.id])
        for _ in range(5):  # through files that hand a name on
            if (module.tree, node.id) in self.values:
                return self.values[module.tree, node.id]
            source = module.imported.get(node.id)
            other = self.files.module(module, source) if source and source.name == node.id else None
            if other is None:
                break
            module = other
        return []

    def _by_then(self, node: ast.Name, values: list[ast.expr]) -> list[ast.expr]:
        """Of the values of a name those that it can have where it is used, within one function."""
        home = self.function_of(node)
        around = [node, *self.above(node)]
        found: list[ast.expr] = []
        for value in values:
            statement = self.statement_of(value)
            if (
                statement is None
                or self.function_of(statement) is not home
                or not self._binds(statement, node)
            ):
                found.append(value)
                continue
            loops = [
                one for one in self.above(statement) if isinstance(one, ast.For | ast.While) and one in around
            ]
            if (value.lineno >= node.lineno or statement in around) and not loops:
                continue  # it comes later
            if self._surely_before(statement, around) and not isinstance(statement, ast.AugAssign):
                found = [one for one in found if self._is_later_in_loop(one, around)]
            found.append(value)
        return found

    def _binds(self, statement: ast.stmt, node: ast.Name) -> bool:
        """Whether a statement assigns to the name, rather than handing it to a call."""
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if isinstance(statement, ast.With):
            targets = [one.optional_vars for one in statement.items]
        parts = [part for one in targets if one is not None for part in ast.walk(one)]
        return any(isinstance(one, ast.Name) and one.id == node.id for one in parts)

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        return next((one for one in [node, *self.above(node)] if isinstance(one, ast.stmt)), None)

    def _surely_before(self, statement: ast.stmt, around: list[ast.AST]) -> bool:
        """Whether a statement stands before another one in a list of statements around that."""
        parent = self.parent(statement)
        if parent not in around or isinstance(parent, ast.Try):
            return False
        for block in ("body", "orelse", "finalbody"):
            lines = getattr(parent, block, None)
            if isinstance(lines, list) and statement in lines:
                return any(one in around for one in lines[lines.index(statement) + 1 :])
        return False

    def _is_later_in_loop(self, value: ast.expr, around: list[ast.AST]) -> bool:
        """Whether a value was assigned below in the loop, and so may come around again."""
        return value.lineno > getattr(around[0], "lineno", 0)

    def _assigned_to_attribute(self, node: ast.Attribute) -> list[ast.expr]:
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            around = self.class_of(node)
            return self._of_class(around, node.attr) if around else []
        text = dotted(node)
        if (None, text) in self.values:
            return self.values[None, text]
        found: list[ast.expr] = []
        for one in self.classes_of(node.value):
            found += self._of_class(one, node.attr)
        return found

    def _of_class(self, kind: ast.ClassDef, name: str) -> list[ast.expr]:
        return [value for one in self.bases(kind) for value in self.values.get((one, name), [])]

    def bases(self, kind: ast.ClassDef) -> list[ast.ClassDef]:
        """A class and those of the script's own that it inherits from."""
        found = [kind]
        for one in found:
            for base in one.bases:
                known = self._look_up(base, self.module_of(one))
                if isinstance(known, list):
                    found += [part for part in known if isinstance(part, ast.ClassDef) and part not in found]
        return found

    def classes_of(self, node: ast.AST) -> list[ast.ClassDef]:
        """The script's own classes whose instance a value may be."""
        found = []
        for one in self.origins(node):
            if isinstance(one, ast.Call):
                found += [part for part in self.definitions_of(one) if isinstance(part, ast.ClassDef)]
        return found

    def definitions_of(self, call: ast.Call) -> list[Definition]:
        return self.definitions_named(call.func)

    def definitions_named(self, node: ast.AST) -> list[Definition]:
        """The script's own functions and classes that a name stands for."""
        found = self._look_up(node, self.module_of(node))
        return found if isinstance(found, list) else []

    def _returned_by(self, call: ast.Call) -> list[ast.expr]:
        results = [one for function in self.callees(call) for one in self.results(function)]
        if isinstance(call.func, ast.Attribute) and call.func.attr in SAME_THING:
            results.append(call.func.value)
        last = self.call_name(call).rpartition(".")[2]
        if last in SAME_THING or last == "prepare":
            results += call.args[:1]
        return results

    def _elements(self, node: ast.expr, index: object) -> list[ast.expr]:
        """Element number ``index`` of each tuple that ``node`` may be."""
        if isinstance(node, ast.Subscript) or not isinstance(index, int):
            return []
        known = self.remembered("elements")
        if (node, index) not in known:
            known[node, index] = []  # `return pair()` may ask for itself
            known[node, index] = self._find_elements(node, index)
        return known[node, index]

    def _find_elements(self, node: ast.expr, index: int) -> list[ast.expr]:
        found = []
        for one in self._stands_for(node):
            if isinstance(one, ast.Tuple) and 0 <= index < len(one.elts):
                found.append(one.elts[index])
            elif isinstance(one, ast.Call):
                found += self._elements(one, index)
        if (
            isinstance(node, ast.Call)
            and self.call_name(node).endswith(".prepare")
            and index < len(node.args)
        ):
            found.append(node.args[index])
        return found

    def results(self, function: Function) -> list[ast.expr]:
        """What a function returns."""
        if isinstance(function, ast.Lambda):
            return [function.body]
        if function not in self._returns:
            own = [one for one in ast.walk(function) if isinstance(one, ast.Return) and one.value]
            self._returns[function] = [
                one.value for one in own if one.value and self.function_of(one) is function
            ]
        return self._returns[function]

    # --- who calls whom ---

    def callees(self, call: ast.Call) -> list[Function]:
        """The functions of the script that the call may enter."""
        if call not in self._entered:
            self._entered[call] = []  # `x = x.next()` would ask for ever
            self._entered[call] = self._find_callees(call)
        return self._entered[call]

    def _find_callees(self, call: ast.Call) -> list[Function]:
        found: list[Function] = []
        for one in self.definitions_of(call):
            if isinstance(one, ast.ClassDef):
                found += self.methods_of(one, "__init__")
            else:
                found.append(one)
        if found or not isinstance(call.func, ast.Attribute):
            return found or self._called_objects(call)
        receiver = call.func.value
        if is_self(receiver):
            around = self.class_of(call)
            if around is not None:
                found += self.methods_of(around, call.func.attr)
            return found
        for kind in self.classes_of(receiver):
            found += self.methods_of(kind, call.func.attr)
        return found

    def _called_objects(self, call: ast.Call) -> list[Function]:
        """``criterion(x)`` enters ``forward`` of the class that ``criterion`` is an instance of."""
        found: list[Function] = []
        for one in self.origins(call.func):
            if isinstance(one, ast.Lambda):
                found.append(one)
        for kind in self.classes_of(call.func) if not isinstance(call.func, ast.Call) else []:
            found += self.methods_of(kind, "__call__") or self.methods_of(kind, "forward")
        return found

    def methods_of(self, kind: ast.ClassDef, name: str) -> list[Function]:
        """The method of a class or, where it has none, of the first base that has it."""
        for one in self.bases(kind):
            found: list[Function] = []
            for part in one.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name == name:
                    found.append(part)
            if found:
                return found
        return []

    # --- assignments ---

    def _note_everything(self) -> None:
        nodes = list(self.nodes)
        for module in self.files.modules[1:]:
            self._module_of_tree[module.tree] = module
            for statement in module.tree.body:  # their constants
                if isinstance(statement, ast.Assign | ast.AnnAssign) and statement not in self._module:
                    nodes.append(statement)
                    for part in ast.walk(statement):
                        self._module.setdefault(part, module)
        for node in nodes:
            self._note_assignment(node)
        for call in self.calls:
            self._note_arguments(call)
        self._forget()  # and once more, now that more arguments are known
        for call in self.calls:
            self._note_arguments(call)
        self._forget()

    def _forget(self) -> None:
        self._origins = {}
        self._entered = {}
        self._remembered = {}
        self._next = {}

    def _note_assignment(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.withitem) and node.optional_vars:
            self._assign(node.optional_vars, node.context_expr)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            known = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for index, one in enumerate(target.elts):
                if len(known) == len(target.elts):
                    self._assign(one, known[index])
                else:
                    part = ast.Subscript(value, ast.Constant(index), ast.Load())
                    self._made_parents[part] = value
                    self._assign(one, ast.copy_location(part, value))
        elif isinstance(target, ast.Name):
            scope = self.function_of(target) or self.class_body(target) or self.module_of(target).tree
            self._add_value(scope, target.id, value)
        elif isinstance(target, ast.Attribute):
            around = self.class_of(target)
            if isinstance(target.value, ast.Name) and target.value.id == "self" and around is not None:
                self._add_value(around, target.attr, value)
            elif "?" not in dotted(target):
                self._add_value(None, dotted(target), value)

    def class_body(self, node: ast.AST) -> ast.ClassDef | None:
        """The class in whose body a statement stands, outside of its methods."""
        return None if self.function_of(node) else self.class_of(node)

    def _add_value(self, scope: Scope, name: str, value: ast.expr) -> None:
        known = self.values.setdefault((scope, name), [])
        if value not in known[-50:]:
            known.append(value)

    def _note_arguments(self, call: ast.Call) -> None:
        for function in self.callees(call):
            names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            if isinstance(self.parent(function), ast.ClassDef):
                names = names[1:]  # without self
            for name, value in zip(names, call.args, strict=False):
                self._add_value(function, name, value)
            for keyword in call.keywords:
                if keyword.arg:
                    self._add_value(function, keyword.arg, keyword.value)


def is_self(node: ast.expr) -> bool:
    """``self``, or ``super()``."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "super")


def dotted(node: ast.AST) -> str:
    """``args.gpu`` as a text; "?" stands for what is no name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))
