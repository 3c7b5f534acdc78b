"""A Python script as a tree: full names, what a name stands for, who calls whom. Taught in lesson 10."""

import ast
from collections.abc import Iterator, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SAME_THING = ("to", "cuda", "cpu", "float", "double", "train", "eval", "compile", "manual_seed", "int")
LIBRARIES = ("torch", "shared", "tqdm")


class Script:
    """A script that is read, never run. Functions of other files are unknown to it."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.nodes = list(ast.walk(self.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.functions = [node for node in self.nodes if isinstance(node, Function)]
        self.imported: dict[str, str] = {}  # {name in the script: full name}
        self.values: dict[tuple, list[ast.expr]] = {}  # {(function, name): what is assigned to it}
        self._entered: dict[ast.Call, list[Function]] = {}
        for note in (self._note_import, self._note_assignment, self._note_arguments):
            for node in self.nodes:
                note(node)
        self._entered = {}  # once more, now that all arguments are known
        names = {call: self.name(call.func).split(".") for call in self.calls}
        self.library = {call: name[-1] if name[0] in LIBRARIES else "" for call, name in names.items()}

    def name(self, node: ast.AST) -> str:
        """The dotted name, imports undone: ``torch.distributed.all_reduce`` for ``dist.all_reduce``."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        base = node.id if isinstance(node, ast.Name) else ""
        return ".".join([self.imported.get(base, base), *reversed(parts)])

    def find(self, *names: str, among: list[ast.Call] | None = None) -> list[ast.Call]:
        """Calls of what bears one of these names and comes from torch, tqdm or this course."""
        return [call for call in (self.calls if among is None else among) if self.library[call] in names]

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around this one, the innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_of(self, node: ast.AST) -> Function | None:
        return next((one for one in self.above(node) if isinstance(one, Function)), None)

    def origins(self, node: ast.AST, deep: bool = False) -> list[ast.AST]:
        """``node`` and all that it may stand for, through names, arguments and results of functions.

        With ``deep`` also what its parts stand for.
        """
        found: dict[ast.AST, None] = {}
        todo = [node]
        while todo:
            one = todo.pop()
            if one not in found:
                found[one] = None
                todo += self._stands_for(one)
                if deep:
                    todo += ast.iter_child_nodes(one)
        return list(found)

    def callees(self, call: ast.Call) -> list[Function]:
        """The functions of this file that the call may enter."""
        if call not in self._entered:
            self._entered[call] = []  # `x = x.next()` would ask for ever
            self._entered[call] = self._find_callees(call)
        return self._entered[call]

    def _find_callees(self, call: ast.Call) -> list[Function]:
        if isinstance(call.func, ast.Name):
            named = [one for one in self.functions if getattr(one, "name", None) == call.func.id]
            plain = [one for one in named if not isinstance(self.parents[one], ast.ClassDef)]
            return plain + self._methods({call.func.id}, "__init__")
        if isinstance(call.func, ast.Attribute):
            made = [one for one in self.origins(call.func.value) if isinstance(one, ast.Call)]
            classes = {one.func.id for one in made if isinstance(one.func, ast.Name)}
            if ast.unparse(call.func.value) in ("self", "super()"):
                classes |= {one.name for one in self.above(call) if isinstance(one, ast.ClassDef)}
            return self._methods(classes, call.func.attr)
        return []

    def _methods(self, classes: set[str], name: str) -> list[Function]:
        named = [one for one in self.functions if getattr(one, "name", None) == name]
        return [one for one in named if getattr(self.parents[one], "name", None) in classes]

    def _stands_for(self, node: ast.AST) -> Sequence[ast.AST]:
        """One step of ``origins``."""
        if isinstance(node, ast.Name):
            return self._assigned_to(node)
        if isinstance(node, ast.Attribute):
            return self.values.get((None, ast.unparse(node)), [])
        if isinstance(node, ast.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, ast.BoolOp):
            return node.values
        if isinstance(node, ast.Call):
            return self._returned_by(node)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._elements(node.value, node.slice.value)
        return []

    def _assigned_to(self, node: ast.Name) -> list[ast.expr]:
        """Of the innermost function around it that assigns to the name, else of the file."""
        scopes: list[Function | None] = [one for one in self.above(node) if isinstance(one, Function)]
        for scope in [*scopes, None]:
            if (scope, node.id) in self.values:
                return self.values[scope, node.id]
        return []

    def _returned_by(self, call: ast.Call) -> list[ast.expr]:
        results = [one for function in self.callees(call) for one in self._results(function)]
        if isinstance(call.func, ast.Attribute) and call.func.attr in SAME_THING:
            results.append(call.func.value)
        if self.name(call.func).rpartition(".")[2] in SAME_THING:
            results += call.args[:1]
        return results

    def _elements(self, node: ast.expr, index: object) -> list[ast.expr]:
        """Element number ``index`` of each tuple that ``node`` may be."""
        if isinstance(node, ast.Subscript) or not isinstance(index, int):
            return []
        tuples = [one.elts for one in self._stands_for(node) if isinstance(one, ast.Tuple)]
        return [elements[index] for elements in tuples if 0 <= index < len(elements)]

    def _results(self, function: Function) -> list[ast.expr]:
        if isinstance(function, ast.Lambda):
            return [function.body]
        return [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value]

    def _note_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self.imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            self.imported |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}

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
                    self._assign(one, ast.copy_location(part, value))
        elif isinstance(target, ast.Name | ast.Attribute):
            scope = self.function_of(target) if isinstance(target, ast.Name) else None
            self.values.setdefault((scope, ast.unparse(target)), []).append(value)

    def _note_arguments(self, node: ast.AST) -> None:
        if not isinstance(node, ast.Call):
            return
        for function in self.callees(node):
            names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            if isinstance(self.parents[function], ast.ClassDef):
                names = names[1:]  # without self
            for name, value in zip(names, node.args, strict=False):
                self.values.setdefault((function, name), []).append(value)
            for keyword in node.keywords:
                self.values.setdefault((function, keyword.arg), []).append(keyword.value)
