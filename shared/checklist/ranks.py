"""Which ranks come to a line of a script, and what the line reaches. Taught in lesson 10."""

import ast

from .script import Function, Script

LOOP = ast.For | ast.AsyncFor | ast.While
ENDS = ast.Return | ast.Continue | ast.Break | ast.Raise
OTHER_RANKS = {"lora", "matrix", "low", "num", "max"}  # `lora_rank` is no rank of a process
DEVICE_RANKS = ("gpu", "gpu_id", "device_id")
MAIN = ("is_main", "main_process", "is_master", "master_process", "rank_zero", "global_zero", "is_rank")
MIRROR = {"one": "others", "others": "one"}
EVERYWHERE = ("", "")


def identifier(node: ast.AST) -> str:
    """The last part of a name, or the text of a string such as the one in ``os.environ["RANK"]``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isupper():
        return node.value.lower()
    found = getattr(node, "attr", getattr(node, "id", ""))
    return found.lower() if isinstance(found, str) else ""


def is_rank(node: ast.AST) -> bool:
    words = identifier(node).split("_")
    return words[-1] == "rank" and not OTHER_RANKS & set(words) or identifier(node) in DEVICE_RANKS


def names_rank(node: ast.AST) -> bool:
    return any(is_rank(one) for one in ast.walk(node))


def depends_on_rank(script: Script, node: ast.AST | None) -> bool:
    """Whether a rank takes part in it, also through the names in it."""
    return node is not None and any(is_rank(one) for one in script.origins(node, deep=True))


def branches(script: Script, test: ast.expr, depth: int = 3) -> tuple[str, str]:
    """Who goes on when ``test`` is true, and who when it is false: one, others, some, or "" for all."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return branches(script, test.operand, depth)[::-1]
    if isinstance(test, ast.BoolOp):
        parts = [branches(script, value, depth) for value in test.values]
        if isinstance(test.op, ast.And):
            kinds = [yes for yes, _ in parts if yes]
            return ("one" if "one" in kinds else kinds[0], "some") if kinds else EVERYWHERE
        alone = [
            isinstance(value, ast.UnaryOp) or "world_size" in ast.unparse(value) for value in test.values
        ]
        if any(yes == "one" for yes, _ in parts):  # `not distributed or rank == 0`
            sure = all(yes == "one" or single for (yes, _), single in zip(parts, alone, strict=True))
            return ("one", "others") if sure else ("some", "others")
        return ("some", "some") if any(yes for yes, _ in parts) else EVERYWHERE
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test)
    if any(word in identifier(getattr(test, "func", test)) for word in MAIN):
        return "one", "others"
    if is_rank(getattr(test, "func", test)) and identifier(getattr(test, "func", test)) not in DEVICE_RANKS:
        return "others", "one"
    kinds = [branches(script, one, depth - 1) for one in script.origins(test)[1:] if depth]
    return next((kind for kind in kinds if kind != EVERYWHERE), EVERYWHERE)


def _compared(test: ast.Compare) -> tuple[str, str]:
    left, right = ast.unparse(test.left), test.comparators[0]
    sign = ast.unparse(test).removeprefix(left).split()[0]
    text = ast.unparse(test).removeprefix(left).strip()
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
        if isinstance(around, ast.If | ast.IfExp):
            for branch, kind in zip(("body", "orelse"), branches(script, around.test), strict=True):
                part = getattr(around, branch)
                found.append(kind if node is part or isinstance(part, list) and node in part else "")
        elif isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And):
            before = around.values[: around.values.index(node)]
            found += [branches(script, one)[0] for one in before]
        for block in ("body", "orelse", "finalbody"):
            lines = getattr(around, block, None)
            before = lines[: lines.index(node)] if isinstance(lines, list) and node in lines else []
            for one in before:  # `if rank != 0: return` leaves the rest to rank 0
                if isinstance(one, ast.If) and isinstance(one.body[-1], ENDS) and not one.orelse:
                    found.append(branches(script, one.test)[1])
        if isinstance(around, Function):
            break
        node = around
    return [kind for kind in found if kind]


def may_follow(script: Script, first: ast.AST, second: ast.AST) -> bool:
    """Whether ``second`` stands below ``first`` in one function, and not in the other branch of an ``if``."""
    if script.function_of(first) is not script.function_of(second) or second.lineno <= first.end_lineno:
        return False
    around = [one for one in script.above(first) if isinstance(one, ast.If) and one in script.above(second)]
    other = [line for one in around for line in one.orelse]
    return not any(one in other for one in script.above(second))


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
    found, todo = {}, [node]
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
