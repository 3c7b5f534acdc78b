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
    found = []
    for call in script.calls:
        last = script.name(call.func).rpartition(".")[2]
        if script.library[call] == "set_device" or (last == "cuda" and call.args):
            found.append((call, call.args[0]))
        elif last == "cuda" and isinstance(call.func, ast.Attribute):
            found.append((call, None))
        elif last in ("device", "to") and call.args and "cuda" in constants(script, call.args[0]):
            found.append((call, argument(script, call, "index", 1) if last == "device" else None))
    for node in script.nodes:
        if isinstance(node, ast.keyword) and node.arg == "device_ids":
            lists = [one for one in script.origins(node.value) if isinstance(one, ast.List)]
            found += [(one, one) for part in lists for one in part.elts]
        elif isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith(("f'cuda:", 'f"cuda:')):
            found += [(node, one.value) for one in node.values if isinstance(one, ast.FormattedValue)]
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda:")
        ):
            found.append((node, ast.Constant(int(node.value[5:]) if node.value[5:].isdigit() else "")))
    return found


def lonely_meetings(script: Script) -> list[tuple[ast.Call, str]]:
    """(call, text) where only some ranks come to a meeting, here or in a function that is called here.

    It is no fault when the other branch has the same meeting, or the other ranks come to it later.
    """
    found = []
    for call in script.calls:
        kinds = guards(script, call)
        for one in reached(script, call) if kinds and (script.callees(call) or meeting(script, call)) else []:
            if (what := meeting(script, one)) and (one is call or not meeting(script, call)):
                text = what if one is call else f"{ast.unparse(call.func)}, and line {one.lineno} is {what}"
                found.append((call, text, (script.function_of(call), what), kinds[0]))
                break
    met = {(place, kind) for _, _, place, kind in found}
    return [(call, text) for call, text, place, kind in found if (place, MIRROR.get(kind)) not in met]


def meet(s: Script) -> Findings:
    """Do all ranks call each collective? Else those that do wait until the timeout."""
    for call, what in lonely_meetings(s):
        yield call, f"only some ranks come to {what}; the others are waited for"


def talk(s: Script) -> Findings:
    """Does one rank speak for all? Else each line comes N times, and bars mix."""
    loud = [one for one in s.calls if s.name(one.func) in NOISY and not s.callees(one)]
    loud = [one for one in loud if not argument(s, one, "disable") and not any(map(names_rank, one.args))]
    for call in loud:
        mains = [
            one for one in s.above(call) if isinstance(one, ast.If) and "__name__" in ast.unparse(one.test)
        ]
        launching = mains and s.find("spawn")  # before there are ranks
        if not launching and not on_one_rank(s, call):
            yield call, "every rank speaks: let rank 0 do it, or say which rank it is"


def old(s: Script) -> Findings:
    """Are the names those of today? Else a newer torch warns, or has them no more."""
    for call in s.calls:
        if (name := s.name(call.func)) in OLD:
            yield call, f"{name} is old: use {OLD[name]}"
        elif name.endswith(".add_argument") and {"--local_rank", "--local-rank"} & constants(
            s, *call.args[:1]
        ):
            yield (
                call,
                "an option for the local rank is of torch.distributed.launch: torchrun sets LOCAL_RANK",
            )


RULES = (group, leave, backend, device, meet, talk, old)
