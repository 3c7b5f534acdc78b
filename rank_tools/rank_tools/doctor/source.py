"""Sends and receives as the source has them: whom a rank waits for in ``work.wait()``; gloo keeps no record.

The job's process gives the whole numbers of its frames; the file is read and its branches are followed here.
"""

import ast
import linecache
import operator
import warnings
from collections.abc import Iterator

SIDES = {"isend": "dst", "irecv": "src"}
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def messages_in(
    file: str, line: int, function: str, known: dict[str, int], rank: int, world_size: int
) -> list[tuple[str, int | None]]:
    """[(isend or irecv, the other rank), ...] that a function has come to when it is at this line."""
    try:
        with warnings.catch_warnings(action="ignore"):  # newer Pythons warn of escapes in strings
            tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    messages: list[tuple[str, int | None]] = []
    for call in calls_before(body_of(tree, line, function), line, Known(known, rank, world_size)):
        message = message_of(call, Known(known, rank, world_size))
        if message is not None and message not in messages and message[1] != rank:
            messages.append(message)
    return messages


class Known:
    """Whole numbers by name, and ``dist.get_rank()`` and ``get_world_size()``."""

    def __init__(self, names: dict[str, int], rank: int, world_size: int) -> None:
        self.names = names
        self.calls = {"get_rank": rank, "get_world_size": world_size}

    def value(self, node: ast.expr | None) -> int | None:
        """What an expression gives, if it is of such numbers alone."""
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name() | ast.Attribute():
                return self.names.get(ast.unparse(node))
            case ast.UnaryOp(op=ast.USub()) if (inner := self.value(node.operand)) is not None:
                return -inner
            case ast.UnaryOp(op=ast.Not()) if (inner := self.value(node.operand)) is not None:
                return not inner
            case ast.BinOp():
                return self.applied(node.op, node.left, node.right)
            case ast.Compare(ops=[op], comparators=[right]):
                return self.applied(op, node.left, right)
            case ast.IfExp() if (test := self.value(node.test)) is not None:
                return self.value(node.body if test else node.orelse)
            case ast.Call(args=[], keywords=[]):
                return self.calls.get(name_of(node))
        return None

    def applied(self, op: ast.AST, left: ast.expr, right: ast.expr) -> int | None:
        values = self.value(left), self.value(right)
        function = OPERATORS.get(type(op))
        if function is None or None in values:
            return None
        try:
            return function(*values)
        except ZeroDivisionError:
            return None


def name_of(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def body_of(tree: ast.Module, line: int, function: str) -> list[ast.stmt]:
    """The statements of the innermost function of this name that has the line."""
    body = tree.body
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name == function and node.lineno <= line <= (node.end_lineno or line):
            body = node.body
    return body


def calls_before(body: list[ast.stmt], line: int, known: Known) -> Iterator[ast.Call]:
    """Calls up to a line; of a branch whose condition is known, those that are taken."""
    for statement in body:
        if statement.lineno > line or isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.If):
            test = known.value(statement.test)
            if test is None or test:
                yield from calls_before(statement.body, line, known)
            if not test:
                yield from calls_before(statement.orelse, line, known)
        elif isinstance(statement, ast.For | ast.While | ast.With | ast.Try):
            for field in ("items", "iter"):
                for node in as_list(getattr(statement, field, [])):
                    yield from (part for part in ast.walk(node) if isinstance(part, ast.Call))
            for field in ("body", "orelse", "finalbody"):
                yield from calls_before(getattr(statement, field, []), line, known)
        else:
            yield from (part for part in ast.walk(statement) if isinstance(part, ast.Call))


def as_list(value: object) -> list:
    return value if isinstance(value, list) else [value]


def message_of(call: ast.Call, known: Known) -> tuple[str, int | None] | None:
    name = name_of(call)
    if name == "P2POp" and len(call.args) > 2:
        return ast.unparse(call.args[0]).rpartition(".")[2], known.value(call.args[2])
    if name not in SIDES:
        return None
    side = SIDES[name]
    peer = next((keyword.value for keyword in call.keywords if keyword.arg == side), None)
    if peer is None and len(call.args) > 1:
        peer = call.args[1]
    return name, known.value(peer)
