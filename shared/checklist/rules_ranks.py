"""Questions to a training script: its processes and devices. Taught in lesson 10.

Each rule yields (place, what is wrong there). Its docstring asks, and says what happens else.
"""

import ast

from .ranks import (
    MIRROR,
    guards,
    identifier,
    is_rank,
    loop_of,
    names_rank,
    who,
)
from .rule import Found, rule
from .script import Script, dotted
from .torch_calls import (
    JOINING,
    REDUCING,
    WRAPPERS,
    argument,
    comes_from,
    constants,
    is_distributed,
    is_literal,
    is_managed,
    is_opaque,
    is_sharded,
    is_wrapped,
    meets,
    methods,
    names_in,
    uses_accelerate,
)

LEAVING = ("destroy_process_group", "process_group")
NOISY = ("wandb.init", "tqdm.tqdm", "tqdm.trange", "tqdm.auto.tqdm", "torch.utils.tensorboard.SummaryWriter")
MOST_PARTS = 2000
LOCAL_RANK_OPTIONS = {"--local_rank", "--local-rank"}
OLD = {
    "torch.nn.DataParallel": "DistributedDataParallel",
    "torch.nn.parallel.DataParallel": "DistributedDataParallel",
    "torch.cuda.amp.GradScaler": "torch.amp.GradScaler(device)",
    "torch.cuda.amp.autocast": "torch.autocast(device)",
}
CLOCKS = ("time.time", "time.perf_counter", "time.monotonic", "datetime.datetime.now")
FINITE = ("isnan", "isfinite", "isinf")
SYNCHRONISING = ("reduce", "gather", "sync", "broadcast", "agree", "barrier", "all_")


@rule("wrong")
def group(s: Script) -> Found:
    """Does each process join a group? Else N processes train N models, and nobody notices."""
    if s.find(*JOINING) or is_managed(s) or is_opaque(s):
        return
    trains = [one for one in methods(s, "backward") if s.is_main(one)]
    needs = [one for one in s.find(*WRAPPERS, "DistributedSampler", *REDUCING) if s.is_main(one)]
    for first in (needs or trains)[:1]:
        yield first, "nothing joins the processes: there is no init_process_group"


@rule("style")
def leave(s: Script) -> Found:
    """Does each process leave the group? Else the run ends with a warning, and may hang at its end."""
    joins = s.find("init_process_group")
    if joins and "all" in who(s, joins[0]) and not s.find(*LEAVING) and not is_managed(s):
        yield joins[0], "there is no destroy_process_group for it"


@rule("wrong")
def backend(s: Script) -> Found:
    """Does the device choose the backend? Else nccl fails on a CPU, or gloo is slow on GPUs."""
    may_be_cpu = any(isinstance(node, ast.IfExp) and _falls_back(s, node) for node in s.nodes)
    joins = s.find("init_process_group")
    for call in joins if len(joins) == 1 else []:
        names = constants(s, argument(s, call, "backend", 0)) & {"nccl", "gloo"}
        if names == {"nccl"} and may_be_cpu and not _gpu_is_set_beside(s, call):
            yield call, "nccl, though the script also chooses the CPU: choose by torch.cuda.is_available()"
        elif names == {"gloo"} and cuda_places(s) and not _only_cpu_works(s):
            yield call, "gloo, though the script uses GPUs: nccl is faster there"


def _gpu_is_set_beside(s: Script, call: ast.Call) -> bool:
    """Whether the lines around it are for GPUs alone, as ``torch.cuda.set_device`` shows."""
    block = s.parent(s.statement_of(call) or call)
    setters = s.find("set_device")
    return any(s.parent(s.statement_of(one) or one) is block for one in setters)


def _falls_back(s: Script, choice: ast.IfExp) -> bool:
    """Whether ``... if torch.cuda.is_available() else "cpu"`` decides between a GPU and the CPU."""
    if not any(is_literal(one, "cpu") for one in ast.walk(choice.orelse) if isinstance(one, ast.expr)):
        return False
    asked = [one for one in s.origins(choice.test, deep=True) if isinstance(one, ast.Call)]
    return any(s.call_name(one).endswith("cuda.is_available") for one in asked)


def _only_cpu_works(s: Script) -> bool:
    """Whether the script moves tensors to the CPU for its collectives, so that gloo is meant."""
    return bool(s.find("new_group"))


@rule("wrong")
def device(s: Script) -> Found:
    """Has each rank its own GPU, by its local rank? Else all share GPU 0, or node 2 finds none."""
    if is_managed(s) or not is_distributed(s) or _hides_gpus(s):
        return
    chosen = bool(s.find("set_device", "set_device_index", "process_group"))
    for node, index in cuda_places(s):
        if who(s, node) <= {"one", "local one", "unknown"} or (index is not None and _computed(s, index)):
            continue
        values = constants(s, index)
        named = constants(s, index, inside=True)
        if index is None:
            if not chosen and not is_opaque(s):
                yield node, "cuda without a number is GPU 0 on each rank: take the number from LOCAL_RANK"
        elif any(type(value) is int for value in values) and not _may_be_a_rank(s, index, named):
            yield node, "the same GPU on each rank: take its number from LOCAL_RANK"
        elif (comes_from(s, index, "get_rank") or "RANK" in named) and "LOCAL_RANK" not in named:
            yield node, "the second machine has no GPU with the number of a global rank: use LOCAL_RANK"


def _may_be_a_rank(s: Script, index: ast.expr, named: set) -> bool:
    return "LOCAL_RANK" in named or any(is_rank(one) for one in s.origins(index)[1:])


def _hides_gpus(s: Script) -> bool:
    """Whether the script sets CUDA_VISIBLE_DEVICES, so that GPU 0 is another one in each process."""
    return any(is_literal(node, "CUDA_VISIBLE_DEVICES") for node in s.nodes if isinstance(node, ast.expr))


def _computed(s: Script, index: ast.expr) -> bool:
    """``rank % gpus`` may be right."""
    return any(isinstance(one, ast.BinOp) for one in s.origins(index))


def cuda_places(script: Script) -> list[tuple[ast.AST, ast.expr | None]]:
    """(place, index of the GPU) wherever a GPU is chosen; None where no index is given."""
    found: list[tuple[ast.AST, ast.expr | None]] = []
    for call in script.calls:
        last = identifier(call.func)
        if script.library[call] in ("set_device", "set_device_index") and call.args:
            found.append((call, call.args[0]))
        elif last == "cuda" and isinstance(call.func, ast.Attribute) and not script.callees(call):
            found.append((call, call.args[0] if call.args else argument(script, call, "device")))
        elif last in ("device", "to") and call.args and "cuda" in constants(script, call.args[0]):
            found.append((call, argument(script, call, "index", 1) if last == "device" else None))
    for node in script.nodes:
        found += _cuda_texts(script, node)
    return found


def _cuda_texts(script: Script, node: ast.AST) -> list[tuple[ast.AST, ast.expr | None]]:
    """(place, index of the GPU) of ``device_ids=[0]``, of ``f"cuda:{rank}"`` and of ``"cuda:0"``."""
    if isinstance(node, ast.keyword) and node.arg == "device_ids":
        lists = [one for one in script.origins(node.value) if isinstance(one, ast.List)]
        return [(one, one) for part in lists if len(part.elts) == 1 for one in part.elts]
    if isinstance(node, ast.JoinedStr) and node.values and _text(node.values[0]) == "cuda:":
        return [(node, one.value) for one in node.values if isinstance(one, ast.FormattedValue)]
    if isinstance(node, ast.Constant) and _text(node).startswith("cuda:") and _is_device(script, node):
        number = _text(node).removeprefix("cuda:")
        return [(node, ast.Constant(int(number)))] if number.isdigit() else []
    return []


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_device(script: Script, node: ast.Constant) -> bool:
    """Whether a text such as "cuda:0" is given to something, and is no key, comparison or default."""
    around = script.parent(node)
    if isinstance(around, ast.Call):
        return identifier(around.func) in ("device", "to")
    if isinstance(around, ast.IfExp):
        return node is around.body
    return isinstance(around, ast.Assign)


# --- meetings ---


def lonely_meetings(s: Script) -> list[tuple[ast.Call, str]]:
    """(call, text) where only some ranks come to a meeting, here or in a function that is called here.

    It is no fault when the other branch has the same meeting, or the other ranks come to it later.
    """
    found = []
    for call in s.calls if is_distributed(s) else []:
        what, where = meets(s, call)
        kinds = guards(s, call) if what else []
        if kinds and where is not None:
            text = what if where is call else f"{dotted(call.func)}, and line {where.lineno} is {what}"
            found.append((call, text, (s.function_of(call), what), kinds[0]))
    met = {(place, kind) for _, _, place, kind in found}
    return [(call, text) for call, text, place, kind in found if (place, MIRROR.get(kind)) not in met]


@rule("hangs")
def meet(s: Script) -> Found:
    """Do all ranks call each collective? Else those that do wait until the timeout."""
    for call, what in lonely_meetings(s):
        yield call, f"only some ranks come to {what}; the others are waited for"


@rule("hangs")
def skip(s: Script) -> Found:
    """Do all ranks leave a loop or skip a step together? Else the others wait in the next collective."""
    for node in s.nodes if is_distributed(s) else []:
        if not isinstance(node, ast.Break | ast.Continue | ast.Return):
            continue
        condition = _condition(s, node)
        if condition is None:
            continue
        loop = loop_of(s, node)
        reason = ""
        if isinstance(node, ast.Break) and loop is not None and guards(s, node, within=loop):
            reason = "only some ranks leave this loop"
        elif _is_local_value(s, condition.test):
            reason = "each rank decides for itself, by a value of its own, to leave or skip here"
        missed = _missed(s, node, condition, loop) if reason else ""
        if missed:
            yield node, f"{reason}; the others wait in {missed}"


def _condition(s: Script, node: ast.stmt) -> ast.If | None:
    """The ``if`` right around a statement."""
    around = s.parent(node)
    return around if isinstance(around, ast.If) else None


def _missed(s: Script, node: ast.stmt, condition: ast.If, loop: ast.AST | None) -> str:
    """The first meeting that a rank does not come to which leaves here."""
    if isinstance(node, ast.Return):
        places: list[ast.AST] = [s.function_of(node) or s.tree]
    else:
        places = [loop] if loop is not None else []
    for place in places:
        for call in ast.walk(place):
            if not isinstance(call, ast.Call) or s.function_of(call) is not s.function_of(node):
                continue
            later = call.lineno > condition.lineno or (isinstance(node, ast.Break) or _in(s, call, loop))
            if isinstance(node, ast.Continue):
                later = call.lineno > condition.lineno
            if later and not _in(s, call, condition) and not guards(s, call, within=place):
                what = meets(s, call)[0]
                if what and what != "init_process_group":
                    return what
    return ""


def _in(s: Script, node: ast.AST, around: ast.AST | None) -> bool:
    return around is not None and any(one is around for one in s.above(node))


def _is_local_value(s: Script, test: ast.expr) -> bool:
    """Whether a condition may be true on one rank and false on another, by a loss or a clock of its own."""
    shared = _shared_names(s, test)
    differs = False
    seen: set[ast.AST] = set()
    todo: list[ast.AST] = [test]
    while todo and len(seen) < MOST_PARTS:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, ast.Name) and one.id in shared:
            return False
        if isinstance(one, ast.Call):
            if _synchronises(s, one):
                return False
            if s.call_name(one) in CLOCKS:
                differs = True
            elif is_wrapped(s, one.func) or is_sharded(s, one.func):
                differs = differs or _is_number(s, test)
                continue  # whatever went in
        todo += s.origins(one)[1:]
        todo += _parts(one)
    return differs


def _parts(node: ast.AST) -> list[ast.AST]:
    """What a value is computed from; of a call its arguments, and the object whose method it is."""
    if isinstance(node, ast.Call):
        of = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*node.args, *(one.value for one in node.keywords), *of]
    return list(ast.iter_child_nodes(node))


def _is_number(s: Script, test: ast.expr) -> bool:
    """Whether a condition compares a value, or asks whether it is finite; not whether it is there."""
    asks = any(identifier(one.func) in FINITE for one in ast.walk(test) if isinstance(one, ast.Call))
    signs = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.NotEq)
    compares = [one for one in ast.walk(test) if isinstance(one, ast.Compare)]
    return asks or any(isinstance(one.ops[0], signs) for one in compares)


def _synchronises(s: Script, call: ast.Call) -> bool:
    """Whether the result of a call may be the same on all ranks because they met."""
    name = identifier(call.func)
    if any(word in name for word in SYNCHRONISING):
        return True
    what = meets(s, call)[0]
    return bool(what) and " of a " not in what  # the forward or the backward of a model


def _shared_names(s: Script, node: ast.AST) -> set[str]:
    """Names in a function that all ranks agree on: given to ``all_reduce(...)`` and the like, in place."""
    place = s.function_of(node) or s.module_of(node).tree
    known = s.remembered("shared names")
    if place not in known:
        found: set[str] = set()
        for call in ast.walk(place):
            if isinstance(call, ast.Call) and _synchronises(s, call) and isinstance(s.parent(call), ast.Expr):
                for given in [*call.args, *(one.value for one in call.keywords)]:
                    found |= {name.partition(".")[0] for name in names_in(given)}
        known[place] = found
    return known[place]


# --- what ranks say, and old names ---


@rule("style")
def talk(s: Script) -> Found:
    """Does one rank speak for all? Else each line comes N times, and bars mix."""
    if not is_distributed(s) or (is_managed(s) and not uses_accelerate(s)):
        return
    quiet = _prints_are_replaced(s)
    for call in s.calls:
        name = s.call_name(call)
        if not (name in NOISY or (name == "print" and not quiet)) or s.callees(call):
            continue
        if argument(s, call, "disable") or argument(s, call, "file") or _says_who(s, call):
            continue
        if who(s, call) & {"all", "others"} and not _before_the_end(s, call):
            use = "accelerator.print" if uses_accelerate(s) and name == "print" else "let rank 0 do it"
            yield call, f"every rank speaks: {use}, or say which rank it is"


def _says_who(s: Script, call: ast.Call) -> bool:
    given = [*call.args, *(one.value for one in call.keywords)]
    words = {identifier(part) for one in given for part in ast.walk(one)}
    return any(map(names_rank, given)) or bool(words & {"gethostname", "device", "process_index", "getpid"})


def _prints_are_replaced(s: Script) -> bool:
    """Whether print itself is silenced on other ranks: ``builtins.print = ...``."""
    targets = [one for node in s.nodes if isinstance(node, ast.Assign) for one in node.targets]
    named = any(isinstance(one, ast.Attribute) and one.attr == "print" for one in targets)
    return (
        named
        or any(getattr(one, "name", "") == "print" for one in s.functions)
        or bool(s.values.get((s.tree, "print")))
    )


def _before_the_end(s: Script, call: ast.Call) -> bool:
    """Whether a script says its last words there, as before sys.exit."""
    block = getattr(s.parent(s.parent(call) or call), "body", [])
    after = [one for line in block if isinstance(line, ast.stmt) for one in ast.walk(line)]
    leaves = [one for one in after if isinstance(one, ast.Call) and identifier(one.func) in ("exit", "_exit")]
    return bool(leaves) or any(isinstance(one, ast.Raise) for one in block)


@rule("style")
def old(s: Script) -> Found:
    """Are the names those of today? Else a newer torch warns, or has them no more."""
    if not is_distributed(s):
        return
    for call in s.calls:
        name = s.call_name(call)
        if name in OLD and not (name.endswith("DataParallel") and s.find(*WRAPPERS)):
            yield call, f"{name} is old: use {OLD[name]}"
        options = {_text(one) for one in call.args} if name.endswith(".add_argument") else set()
        around = [one.test for one in s.above(call) if isinstance(one, ast.If)]
        for_all_versions = any(dotted(getattr(test, "left", test)) != "__name__" for test in around)
        if not LOCAL_RANK_OPTIONS.isdisjoint(options) and not is_managed(s) and not for_all_versions:
            text = "an option for the local rank is of torch.distributed.launch: torchrun sets LOCAL_RANK"
            yield call, text


RULES = (group, leave, backend, device, meet, skip, talk, old)
