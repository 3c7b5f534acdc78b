"""Questions to a training script: its processes and devices. Taught in lesson 10.

Each rule yields (place, what is wrong there). Its docstring asks, and says what happens else.
"""

import ast
from collections.abc import Iterator

from .ranks import MIRROR, guards, names_rank, on_one_rank, reached
from .script import Script
from .torch_calls import argument, comes_from, constants, meeting

Findings = Iterator[tuple[ast.AST, str]]
OF_COURSE = ("process_group", "run")  # of shared: what they do is known, though their files are not read
JOINING = ("init_process_group", "process_group")
NOISY = ("print", "wandb.init", "tqdm.tqdm", "tqdm.trange", "torch.utils.tensorboard.SummaryWriter")
LOCAL_RANK_OPTIONS = {"--local_rank", "--local-rank"}
OLD = {
    "torch.nn.DataParallel": "DistributedDataParallel (lesson 07)",
    "torch.nn.parallel.DataParallel": "DistributedDataParallel (lesson 07)",
    "torch.cuda.amp.GradScaler": "torch.amp.GradScaler(device)",
    "torch.cuda.amp.autocast": "torch.autocast(device)",
}


def group(s: Script) -> Findings:
    """Does each process join a group? Else N processes train N models, and nobody notices."""
    if not s.find(*JOINING):
        yield s.tree, "there is no init_process_group in this file"


def leave(s: Script) -> Findings:
    """Does each process leave the group? Else the end of the run is a warning, or a hang."""
    if s.find("init_process_group") and not s.find("destroy_process_group", *OF_COURSE):
        yield s.find("init_process_group")[0], "there is no destroy_process_group for it in this file"


def backend(s: Script) -> Findings:
    """Does the device choose the backend? Else nccl ends on a laptop, or gloo is slow on a GPU."""
    for call in s.find("init_process_group"):
        names = constants(s, argument(s, call, "backend", 0)) & {"nccl", "gloo"}
        if names == {"nccl"} or (names == {"gloo"} and cuda_places(s)):
            yield call, f"{names.pop()} on every device: choose it by torch.cuda.is_available()"


def device(s: Script) -> Findings:
    """Has each rank its own GPU, by its local rank? Else all share GPU 0, or node 2 finds none."""
    for node, index in cuda_places(s):
        values = constants(s, index)
        named = constants(s, index, inside=True)
        if index is None:
            if not s.find("set_device", "process_group"):
                yield node, "cuda without a number is GPU 0 on each rank: take the number from LOCAL_RANK"
        elif any(type(value) is int for value in values) and "LOCAL_RANK" not in named:
            yield node, "the same GPU on each rank: take its number from LOCAL_RANK"
        elif comes_from(s, index, "get_rank") or "RANK" in named:
            yield node, "the second machine has no GPU with the number of a global rank: use LOCAL_RANK"


def cuda_places(script: Script) -> list[tuple[ast.AST, ast.expr | None]]:
    """(place, index of the GPU) wherever a GPU is chosen; None where no index is given."""
    found: list[tuple[ast.AST, ast.expr | None]] = []
    for call in script.calls:
        last = script.name(call.func).rpartition(".")[2]
        if script.library[call] == "set_device" or (last == "cuda" and call.args):
            found.append((call, call.args[0]))
        elif last == "cuda" and isinstance(call.func, ast.Attribute):
            found.append((call, None))
        elif last in ("device", "to") and call.args and "cuda" in constants(script, call.args[0]):
            found.append((call, argument(script, call, "index", 1) if last == "device" else None))
    for node in script.nodes:
        found += [(place, index) for place, index in _cuda_texts(script, node)]
    return found


def _cuda_texts(script: Script, node: ast.AST) -> list[tuple[ast.AST, ast.expr]]:
    """(place, index of the GPU) of ``device_ids=[0]``, of ``f"cuda:{rank}"`` and of ``"cuda:0"``."""
    if isinstance(node, ast.keyword) and node.arg == "device_ids":
        lists = [one for one in script.origins(node.value) if isinstance(one, ast.List)]
        return [(one, one) for part in lists for one in part.elts]
    if isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith(("f'cuda:", 'f"cuda:')):
        return [(node, one.value) for one in node.values if isinstance(one, ast.FormattedValue)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda:"):
        number = node.value.removeprefix("cuda:")
        return [(node, ast.Constant(int(number) if number.isdigit() else ""))]
    return []


def lonely_meetings(script: Script) -> list[tuple[ast.Call, str]]:
    """(call, text) where only some ranks come to a meeting, here or in a function that is called here.

    It is no fault when the other branch has the same meeting, or the other ranks come to it later.
    """
    found = []
    for call in script.calls:
        kinds = guards(script, call)
        if not kinds:
            continue
        what, text = _meeting_in(script, call)
        if what:
            found.append((call, text, (script.function_of(call), what), kinds[0]))
    met = {(place, kind) for _, _, place, kind in found}
    return [(call, text) for call, text, place, kind in found if (place, MIRROR.get(kind)) not in met]


def _meeting_in(script: Script, call: ast.Call) -> tuple[str, str]:
    """(meeting, what to say of it): the call itself, or the first in the functions that it enters."""
    what = meeting(script, call)
    if what:
        return what, what
    if script.callees(call):
        for one in reached(script, call):
            what = meeting(script, one)
            if what:
                return what, f"{ast.unparse(call.func)}, and line {one.lineno} is {what}"
    return "", ""


def meet(s: Script) -> Findings:
    """Do all ranks call each collective? Else those that do wait until the timeout."""
    for call, what in lonely_meetings(s):
        yield call, f"only some ranks come to {what}; the others are waited for"


def talk(s: Script) -> Findings:
    """Does one rank speak for all? Else each line comes N times, and bars mix."""
    loud = [one for one in s.calls if s.name(one.func) in NOISY and not s.callees(one)]
    loud = [one for one in loud if not argument(s, one, "disable") and not any(map(names_rank, one.args))]
    for call in loud:
        above = [one for one in s.above(call) if isinstance(one, ast.If)]
        mains = [one for one in above if "__name__" in ast.unparse(one.test)]
        launching = mains and s.find("spawn")  # before there are ranks
        if not launching and not on_one_rank(s, call):
            yield call, "every rank speaks: let rank 0 do it, or say which rank it is"


def old(s: Script) -> Findings:
    """Are the names those of today? Else a newer torch warns, or has them no more."""
    for call in s.calls:
        name = s.name(call.func)
        if name in OLD:
            yield call, f"{name} is old: use {OLD[name]}"
        options = constants(s, call.args[0]) if name.endswith(".add_argument") and call.args else set()
        if not LOCAL_RANK_OPTIONS.isdisjoint(options):
            text = "an option for the local rank is of torch.distributed.launch: torchrun sets LOCAL_RANK"
            yield call, text


RULES = (group, leave, backend, device, meet, talk, old)
