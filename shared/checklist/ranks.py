"""Which ranks come to a line of a script, and what the line reaches. Taught in lesson 10."""

import ast

from .files import Function
from .script import Script, dotted

Loop = ast.For | ast.AsyncFor | ast.While
Ends = ast.Return | ast.Continue | ast.Break | ast.Raise
OTHER_RANKS = {  # `lora_rank` is no rank of a process
    "all", "full", "lora", "low", "matrix", "max", "negative", "num", "page", "tensor",
}  # fmt: skip
DEVICE_RANKS = ("gpu", "gpu_id", "device_id")
LOCAL_WORDS = ("local", "node")
MAIN = (
    "is_main",
    "main_process",
    "is_master",
    "master_process",
    "rank_zero",
    "global_zero",
    "is_rank",
    "is_primary",
    "rank0",
    "rank_0",
    "is_chief",
    "is_leader",
    "is_coordinator",
    "first_worker",
)
ON_ONE = ("rank_zero_only", "on_main_process", "rank0_only", "master_only", "main_process_only")
LAUNCHERS = ("spawn", "start_processes", "notebook_launcher", "Process")
MIRROR = {"one": "others", "others": "one", "local one": "local others", "local others": "local one"}
MOST_MEANINGS = 50  # of a condition are looked at
Branches = tuple[str, str]  # who goes on when a test is true, and who when it is false
EVERYWHERE: Branches = ("", "")
NO_GROUP = (" None", " -1", "> -1", ">= 0")


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


def is_local(script: Script, node: ast.AST) -> bool:
    """Whether a rank is surely one that counts within a machine, as torchrun's LOCAL_RANK does."""
    ranks = [one for one in ast.walk(node) if is_rank(one) and not identifier(one).startswith("get_")]
    named = any(word in identifier(one).split("_") for one in ranks for word in LOCAL_WORDS)
    names = {identifier(one) for one in script.origins(node, deep=True)}
    from_environment = "local_rank" in names
    if named and any(
        isinstance(one, ast.BinOp) and _is_remainder(one) for one in script.origins(node, deep=True)
    ):
        return not on_one_machine(script)
    texts = {one.value for one in script.origins(node, deep=True) if isinstance(one, ast.Constant)}
    is_global = "RANK" in texts or not names.isdisjoint(("get_rank", "global_rank"))
    return (named or from_environment) and not is_global and not on_one_machine(script)


def on_one_machine(script: Script) -> bool:
    """Whether the script starts its own processes, so that ranks and local ranks are the same."""
    if not launches(script):
        return False
    joins = [one for one in script.calls if identifier(one.func) == "init_process_group"]
    given = [keyword.value for one in joins for keyword in one.keywords if keyword.arg == "rank"]
    given += [one.args[3] for one in joins if len(one.args) > 3]
    parts = [part for one in given for part in script.origins(one)]
    return not any(isinstance(one, ast.BinOp | ast.AugAssign) for one in parts) and not _is_added_to(
        script, given
    )


def _is_added_to(script: Script, given: list[ast.expr]) -> bool:
    """``args.rank += gpu``: then there are several machines."""
    names = {dotted(one) for one in given}
    return any(isinstance(one, ast.AugAssign) and dotted(one.target) in names for one in script.nodes)


def launches(script: Script) -> list[ast.Call]:
    """Calls that start the processes of the script."""
    found = [one for one in script.calls if script.call_name(one).rpartition(".")[2] in LAUNCHERS]
    return [one for one in found if not script.callees(one)]


def branches(script: Script, test: ast.AST, depth: int = 4) -> Branches:
    """Who goes on when ``test`` is true, and who when it is false; "" for all, see ``guards``."""
    known = script.remembered("branches")
    if test not in known:
        known[test] = EVERYWHERE  # it may ask for itself
        known[test] = _find_branches(script, test, depth)
    return known[test]


def _find_branches(script: Script, test: ast.AST, depth: int) -> Branches:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        when_true, when_false = branches(script, test.operand, depth)
        return when_false, when_true
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return _all_of([branches(script, value, depth) for value in test.values])
    if isinstance(test, ast.BoolOp):
        return _any_of(test.values, [branches(script, value, depth) for value in test.values])
    if isinstance(test, ast.NamedExpr):
        return branches(script, test.value, depth)
    if isinstance(test, ast.Compare):
        return _compared(script, test, depth) if len(test.ops) == 1 else EVERYWHERE
    asked = test.func if isinstance(test, ast.Call) else test
    if any(word in identifier(asked) for word in MAIN):
        return ("local one", "local others") if "local" in identifier(asked) else ("one", "others")
    if is_rank(asked) and identifier(asked).startswith("is_"):  # `is_wandb_rank`
        return "one", "others"
    if is_rank(asked) and identifier(asked) not in DEVICE_RANKS:
        return ("local others", "local one") if is_local(script, asked) else ("others", "one")
    if depth:
        for one in script.origins(test)[1:MOST_MEANINGS]:
            kind = branches(script, one, depth - 1)
            if kind != EVERYWHERE:
                return kind
    return _made_on_one(script, test)


def _all_of(parts: list[Branches]) -> Branches:
    """Of conditions joined by ``and``."""
    kinds = [when_true for when_true, _ in parts if when_true]
    if not kinds:
        return EVERYWHERE
    return "one" if "one" in kinds else kinds[0], "some"


def _any_of(values: list[ast.expr], parts: list[Branches]) -> Branches:
    """Of conditions joined by ``or``."""
    kinds = [when_true for when_true, _ in parts]
    for wanted in ("one", "local one"):
        if wanted in kinds:  # `not distributed or rank == 0`
            pairs = zip(values, kinds, strict=True)
            sure = all(kind == wanted or not kind or _is_alone(value) for value, kind in pairs)
            return wanted if sure and _all_alone(values, kinds) else "some", MIRROR[wanted]
    return ("some", "some") if any(kinds) else EVERYWHERE


def _all_alone(values: list[ast.expr], kinds: list[str]) -> bool:
    return all(kind or _is_alone(value) for value, kind in zip(values, kinds, strict=True))


def _is_alone(value: ast.expr) -> bool:
    """Whether a condition may say that there are no other ranks: ``not distributed``, ``world_size == 1``."""
    if isinstance(value, ast.UnaryOp):
        return True
    if isinstance(value, ast.BoolOp):
        return any(_is_alone(one) for one in value.values)
    return any("world_size" in identifier(one) or "nproc" in identifier(one) for one in ast.walk(value))


def _compared(script: Script, test: ast.Compare, depth: int) -> Branches:
    left, right = test.left, test.comparators[0]
    if (
        isinstance(test.ops[0], ast.IsNot | ast.Is)
        and isinstance(right, ast.Constant)
        and right.value is None
    ):
        made = _made_on_one(script, left)
        return made if isinstance(test.ops[0], ast.IsNot) else (made[1], made[0])
    sign = type(test.ops[0]).__name__
    if names_rank(right) and not names_rank(left):  # `0 == rank`
        sign = {"Lt": "Gt", "Gt": "Lt", "LtE": "GtE", "GtE": "LtE"}.get(sign, sign)
        left, right = right, left
    elif not names_rank(left):
        return _compared_name(script, left, right, sign, depth)
    return _kind(script, left, sign, right)


def _compared_name(script: Script, left: ast.expr, right: ast.expr, sign: str, depth: int) -> Branches:
    """``first == 0`` where ``first`` was made from a rank."""
    if not depth or not isinstance(left, ast.Name) or not isinstance(right, ast.Constant):
        return EVERYWHERE
    made = [one for one in script.origins(left)[1:] if not isinstance(one, ast.Name)]
    ranks = [one for one in made if is_rank(one) or (isinstance(one, ast.Call) and is_rank(one.func))]
    rank = ranks[0] if ranks else None
    return _kind(script, rank, sign, right) if isinstance(rank, ast.expr) else EVERYWHERE


def _kind(script: Script, left: ast.expr, sign: str, right: ast.expr) -> Branches:
    """Who is meant by a rank that is compared."""
    numbers = _numbers(right)
    if sign in ("Is", "IsNot") or numbers == [-1] or (sign == "GtE" and numbers == [0]):
        return EVERYWHERE  # is there a group at all?
    first = (sign, numbers) in (("Lt", [1]), ("LtE", [0]))
    others = (sign, numbers) in (("Gt", [0]), ("GtE", [1]))
    one: Branches = ("one", "others")
    if is_local(script, left) or _is_remainder(left):
        one = ("local one", "local others")
    if sign == "Eq" or first or (sign == "In" and set(numbers) in ({0}, {-1, 0})):
        return one
    if sign == "NotEq" or others or (sign == "NotIn" and set(numbers) in ({0}, {-1, 0})):  # codespell:ignore
        return one[1], one[0]
    return "some", "some"


def _is_remainder(node: ast.expr) -> bool:
    """``rank % gpus`` is a rank within a machine."""
    return any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) for one in ast.walk(node))


def _numbers(node: ast.expr) -> list[int]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    found = []
    for part in parts:
        sign = 1
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
            part, sign = part.operand, -1
        if isinstance(part, ast.Constant) and type(part.value) is int:
            found.append(sign * part.value)
    return found


def _made_on_one(script: Script, node: ast.AST) -> Branches:
    """Of ``writer is not None``: where one rank alone made a writer, that one."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return EVERYWHERE
    values = [one for one in script.origins(node)[1:] if not isinstance(one, ast.Name | ast.Attribute)]
    nothing = [one for one in values if isinstance(one, ast.Constant) and one.value is None]
    made = [one for one in values if isinstance(one, ast.Call)]
    if not nothing or not made:
        return EVERYWHERE
    kinds = [set(guards(script, one)) for one in made]
    return ("one", "others") if all("one" in kind for kind in kinds) else EVERYWHERE


def guards(script: Script, node: ast.AST, within: ast.AST | None = None) -> list[str]:
    """Who runs ``node`` within its function: an entry for each condition on the rank around it.

    one: rank 0 or another single one; others: all but that; local one, local others: the same on each
    machine; some: it cannot be told which. With ``within`` only conditions inside of that node count.
    """
    key = (node, within)
    known = script.remembered("guards")
    if key not in known:
        known[key] = []  # a condition may ask for itself
        known[key] = _find_guards(script, node, within)
    return known[key]


def _find_guards(script: Script, node: ast.AST, within: ast.AST | None) -> list[str]:
    found = []
    for around in script.above(node):
        found += _of_condition(script, around, node)
        found += _of_lines_before(script, around, node)
        if isinstance(around, Function) or around is within:
            break
        node = around
    return [kind for kind in found if kind]


def _of_condition(script: Script, around: ast.AST, node: ast.AST) -> list[str]:
    """Who comes to ``node``, a part of ``around``, because of what ``around`` asks."""
    if isinstance(around, ast.If | ast.IfExp | ast.While):
        when_true, when_false = branches(script, around.test)
        if _holds(around.body, node):
            return [when_true]
        is_else = not isinstance(around, ast.While) and _holds(around.orelse, node)
        return [when_false] if is_else else []
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
                if isinstance(one, ast.If) and isinstance(one.body[-1], Ends) and not one.orelse:
                    found.append(branches(script, one.test)[1])
    return found


def _holds(branch: ast.expr | list[ast.stmt], node: ast.AST) -> bool:
    return node in branch if isinstance(branch, list) else node is branch


def _position(values: list[ast.expr], node: ast.AST) -> int:
    return next(index for index, value in enumerate(values) if value is node)


def may_follow(script: Script, first: ast.AST, second: ast.AST) -> bool:
    """Whether ``second`` stands below ``first`` in one function, and not in the other branch of an ``if``."""
    if script.function_of(first) is not script.function_of(second):
        return False
    if script.module_of(first) is not script.module_of(second) or is_inside(script, second, first):
        return False
    if second.lineno <= (first.end_lineno or first.lineno):  # type: ignore[attr-defined]
        return False
    above_second = set(script.above(second))
    above = list(script.above(first))
    for around in above:
        other_branch = around.orelse if isinstance(around, ast.If) and around in above_second else []
        if any(line in above_second for line in other_branch):
            return False
    for around in above:  # `if …: …; return`
        if isinstance(around, ast.If) and around not in above_second:
            block = around.orelse if any(one in above for one in around.orelse) else around.body
            if isinstance(block[-1], Ends):
                return False
    return True


def is_inside(script: Script, node: ast.AST, around: ast.AST) -> bool:
    return any(one is around for one in script.above(node))


def callers(script: Script, function: Function) -> list[ast.Call]:
    known = script.remembered("callers")
    if not known:
        known[None] = []
        for call in script.calls:
            for callee in script.callees(call):
                known.setdefault(callee, []).append(call)
    return known.get(function, [])


def handed_on(script: Script, function: Function) -> list[ast.Call]:
    """Calls that get the function itself as an argument: ``spawn(main)``, ``Process(target=main)``."""
    known = script.remembered("handed on")
    if not known:
        known[None] = []
        for call in script.calls:
            for one in [*call.args, *(keyword.value for keyword in call.keywords)]:
                for definition in script.definitions_named(one):
                    known.setdefault(definition, []).append(call)
    return known.get(function, [])


def who(script: Script, node: ast.AST, seen: tuple = ()) -> set[str]:
    """Who may come to a node, over all ways from the start of the script.

    one, local one: a single rank, or one of each machine; others: all but one; all; some: cannot be told;
    unknown: the script does not show who calls the function.
    """
    kinds = guards(script, node)
    for kind in ("one", "local one", "others"):
        if kind in kinds:
            return {kind}
    if kinds or _in_turns(script, node):
        return {"some"}
    function = script.function_of(node)
    if function is None:
        return {"one"} if _is_launcher(script, node) else {"all"}
    if function in seen:
        return set()
    if any(identifier(_decorator(one)) in ON_ONE for one in getattr(function, "decorator_list", [])):
        return {"one"}
    found: set[str] = set()
    for call in callers(script, function):
        found |= who(script, call, (*seen, function))
    for call in handed_on(script, function):
        starts = script.call_name(call).rpartition(".")[2] in LAUNCHERS
        found |= {"all"} if starts else {"unknown"}
    return found or {"unknown"}


def _in_turns(script: Script, node: ast.AST) -> bool:
    """Whether a ``with`` such as ``with rank0_first():`` lets one rank go before the others."""
    for around in script.above(node):
        if isinstance(around, ast.With):
            names = [_decorator(item.context_expr) for item in around.items]
            if any(word in identifier(name) for name in names for word in ("first", "zero", "main", "rank")):
                return True
        if isinstance(around, Function):
            return False
    return False


def _decorator(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _is_launcher(script: Script, node: ast.AST) -> bool:
    """Whether a line of a file's own level runs before there are ranks: the script starts them itself."""
    if not launches(script):
        return False
    conditions = [one for one in script.above(node) if isinstance(one, ast.If)]
    return any("__name__" in {identifier(part) for part in ast.walk(one.test)} for one in conditions)


def on_one_rank(script: Script, node: ast.AST) -> bool:
    """Whether one rank alone comes here, whichever way it comes."""
    found = who(script, node)
    return bool(found) and found <= {"one", "unknown"} and "one" in found


def direct_calls(script: Script, node: ast.AST) -> list[ast.Call]:
    known = script.remembered("direct calls")
    if node not in known:
        known[node] = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return known[node]


def reached(script: Script, node: ast.AST) -> list[ast.Call]:
    """The calls in ``node``, and those in the functions of the script that they enter."""
    known = script.remembered("reached")
    if node not in known:
        found: dict[ast.Call, None] = {}
        entered: set[ast.AST] = set()
        todo = [node]
        while todo:
            part = todo.pop()
            if part not in entered:
                entered.add(part)
                for call in direct_calls(script, part):
                    found[call] = None
                    todo += script.callees(call)
        known[node] = list(found)
    return known[node]


def in_loop(script: Script, node: ast.AST, seen: tuple = ()) -> bool:
    """Whether it stands in a loop, or in a function that is called in one, or by somebody unknown."""
    for one in script.above(node):
        if isinstance(one, Loop):
            return True
        if isinstance(one, Function):
            calls = callers(script, one) if one not in seen else []
            return not calls or any(in_loop(script, call, (*seen, one)) for call in calls)
    return False


def loop_of(script: Script, node: ast.AST) -> ast.AST | None:
    """The loop around a node, in the same function."""
    for one in script.above(node):
        if isinstance(one, Loop):
            return one
        if isinstance(one, Function):
            return None
    return None
