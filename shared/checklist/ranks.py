"""Which ranks come to a line of a script, and what the line reaches. Taught in lesson 10."""

import ast

from .script import Function, Script

LOOP = ast.For | ast.AsyncFor | ast.While
ENDS = ast.Return | ast.Continue | ast.Break | ast.Raise
OTHER_RANKS = {"lora", "matrix", "low", "num", "max"}  # `lora_rank` is no rank of a process
DEVICE_RANKS = ("gpu", "gpu_id", "device_id")
MAIN = ("is_main", "main_process", "is_master", "master_process", "rank_zero", "global_zero", "is_rank")
MIRROR = {"one": "others", "others": "one"}
Branches = tuple[str, str]  # who goes on when a test is true, and who when it is false
EVERYWHERE: Branches = ("", "")


def identifier(node: ast.AST) -> str:
    """The last part of a name, or the text of a string such as the one in ``os.environ["RANK"]``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isupper():
        return node.value.lower()
    found = getattr(node, "attr", getattr(node, "id", ""))
    return found.lower() if isinstance(found, str) else ""


def is_rank(node: ast.AST) -> bool:
    words = identifier(node).split("_")
    if identifier(node) in DEVICE_RANKS:
        return True
    return words[-1] == "rank" and OTHER_RANKS.isdisjoint(words)


def names_rank(node: ast.AST) -> bool:
    return any(is_rank(one) for one in ast.walk(node))


def depends_on_rank(script: Script, node: ast.AST | None) -> bool:
    """Whether a rank takes part in it, also through the names in it."""
    return node is not None and any(is_rank(one) for one in script.origins(node, deep=True))


def branches(script: Script, test: ast.AST, depth: int = 3) -> Branches:
    """Who goes on when ``test`` is true, and who when it is false: one, others, some, or "" for all."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        when_true, when_false = branches(script, test.operand, depth)
        return when_false, when_true
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return _all_of([branches(script, value, depth) for value in test.values])
    if isinstance(test, ast.BoolOp):
        return _any_of(test.values, [branches(script, value, depth) for value in test.values])
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test)
    asked = getattr(test, "func", test)  # the function, if it is a call
    if any(word in identifier(asked) for word in MAIN):
        return "one", "others"
    if is_rank(asked) and identifier(asked) not in DEVICE_RANKS:
        return "others", "one"
    if depth:
        for one in script.origins(test)[1:]:
            kind = branches(script, one, depth - 1)
            if kind != EVERYWHERE:
                return kind
    return EVERYWHERE


def _all_of(parts: list[Branches]) -> Branches:
    """Of conditions joined by ``and``."""
    kinds = [when_true for when_true, _ in parts if when_true]
    if not kinds:
        return EVERYWHERE
    return "one" if "one" in kinds else kinds[0], "some"


def _any_of(values: list[ast.expr], parts: list[Branches]) -> Branches:
    """Of conditions joined by ``or``."""
    kinds = [when_true for when_true, _ in parts]
    if "one" in kinds:  # `not distributed or rank == 0`
        sure = all(kind == "one" or _is_alone(value) for value, kind in zip(values, kinds, strict=True))
        return "one" if sure else "some", "others"
    return ("some", "some") if any(kinds) else EVERYWHERE


def _is_alone(value: ast.expr) -> bool:
    """Whether a condition may say that there are no other ranks: ``not distributed``, ``world_size == 1``."""
    return isinstance(value, ast.UnaryOp) or "world_size" in ast.unparse(value)


def _compared(test: ast.Compare) -> Branches:
    left = ast.unparse(test.left)
    right = test.comparators[0]
    text = ast.unparse(test).removeprefix(left).strip()
    sign = text.split()[0]
    if names_rank(right) and not names_rank(test.left):  # `0 == rank`
        sign = {"<": ">", ">": "<"}.get(sign, sign)
        text = f"{sign} {left}"
    elif not names_rank(test.left):
        return EVERYWHERE
    if sign == "is" or text.endswith((" None", " -1")):  # is there a group at all?
        return EVERYWHERE
    if sign == "==" or text in ("< 1", "<= 0", "in [-1, 0]", "in (-1, 0)"):
        return "one", "others"
    if sign == "!=" or text in ("> 0", ">= 1", "not in [-1, 0]", "not in (-1, 0)"):
        return "others", "one"
    return "some", "some"


def guards(script: Script, node: ast.AST) -> list[str]:
    """Who runs ``node`` within its function: an entry for each condition on the rank around it."""
    found = []
    for around in script.above(node):
        found += _of_condition(script, around, node)
        found += _of_lines_before(script, around, node)
        if isinstance(around, Function):
            break
        node = around
    return [kind for kind in found if kind]


def _of_condition(script: Script, around: ast.AST, node: ast.AST) -> list[str]:
    """Who comes to ``node``, a part of ``around``, because of what ``around`` asks."""
    if isinstance(around, ast.If | ast.IfExp):
        when_true, when_false = branches(script, around.test)
        if _holds(around.body, node):
            return [when_true]
        return [when_false] if _holds(around.orelse, node) else []
    if isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And):
        before = around.values[: _position(around.values, node)]
        return [branches(script, one)[0] for one in before]
    return []


def _of_lines_before(script: Script, around: ast.AST, node: ast.AST) -> list[str]:
    """Who comes to ``node`` past lines before it: ``if rank != 0: return`` leaves the rest to rank 0."""
    found = []
    for block in ("body", "orelse", "finalbody"):
        lines = getattr(around, block, None)
        if isinstance(lines, list) and node in lines:
            for one in lines[: lines.index(node)]:
                if isinstance(one, ast.If) and isinstance(one.body[-1], ENDS) and not one.orelse:
                    found.append(branches(script, one.test)[1])
    return found


def _holds(branch: ast.expr | list[ast.stmt], node: ast.AST) -> bool:
    return node in branch if isinstance(branch, list) else node is branch


def _position(values: list[ast.expr], node: ast.AST) -> int:
    return next(index for index, value in enumerate(values) if value is node)


def may_follow(script: Script, first: ast.Call, second: ast.Call) -> bool:
    """Whether ``second`` stands below ``first`` in one function, and not in the other branch of an ``if``."""
    if script.function_of(first) is not script.function_of(second):
        return False
    if second.lineno <= (first.end_lineno or first.lineno):
        return False
    above_second = list(script.above(second))
    for around in script.above(first):
        other_branch = around.orelse if isinstance(around, ast.If) and around in above_second else []
        if any(line in above_second for line in other_branch):
            return False
    return True


def callers(script: Script, function: Function) -> list[ast.Call]:
    return [call for call in script.calls if function in script.callees(call)]


def on_one_rank(script: Script, node: ast.AST, seen: tuple = ()) -> bool:
    """Whether a guard lets one rank alone come here, in this function or wherever it is called."""
    if "one" in guards(script, node):
        return True
    function = script.function_of(node)
    calls = callers(script, function) if function and function not in seen else []
    return bool(calls) and all(on_one_rank(script, call, (*seen, function)) for call in calls)


def reached(script: Script, node: ast.AST) -> list[ast.Call]:
    """The calls in ``node``, and those in the functions of this file that they enter."""
    found: dict[ast.Call, None] = {}
    todo = [node]
    while todo:
        for call in ast.walk(todo.pop()):
            if isinstance(call, ast.Call) and call not in found:
                found[call] = None
                todo += script.callees(call)
    return list(found)


def in_loop(script: Script, node: ast.AST, seen: tuple = ()) -> bool:
    """Whether it stands in a loop, or in a function that is called in one."""
    for one in script.above(node):
        if isinstance(one, LOOP):
            return True
        if isinstance(one, Function) and one not in seen:
            return any(in_loop(script, call, (*seen, one)) for call in callers(script, one))
    return False
