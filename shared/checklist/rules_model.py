"""Questions to a training script: its model, optimizer and checkpoint. Taught in lesson 10.

Each rule yields (place, what is wrong there). Its docstring asks, and says what happens else.
"""

import ast
from collections.abc import Iterator

from .ranks import identifier, may_follow, on_one_rank
from .script import Script
from .torch_calls import REDUCING, WRAPPERS, argument, comes_from, methods, receiver

Findings = Iterator[tuple[ast.AST, str]]
SHARDING = ("FullyShardedDataParallel", "fully_shard")
SAVING = ("torch.save", "shared.training.checkpoint.save_atomically")
NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "resnet18", "resnet34", "resnet50")
CONVERTING = ("convert_sync_batchnorm", "convert_batch_norm")


def wrap(s: Script) -> Findings:
    """Are the gradients averaged? Else each rank trains a model of its own."""
    backward = methods(s, "backward")
    by_hand = s.find(*REDUCING) and any(getattr(one, "attr", "") == "grad" for one in s.nodes)
    if backward and not by_hand and not s.find(*WRAPPERS, *SHARDING):
        text = "no DistributedDataParallel, FSDP or fully_shard in this file averages these gradients"
        yield backward[0], text


def order(s: Script) -> Findings:
    """Is the model moved before DDP, and sharded before the optimizer? Else it holds old tensors."""
    for call in [*methods(s, "to"), *methods(s, "cuda")]:
        before = [one for one in s.find(*WRAPPERS) if may_follow(s, one, call)]
        if before and comes_from(s, receiver(call), *WRAPPERS):
            yield call, "moved after it was wrapped: move the model first"
    optimizers = [call for call in s.calls if s.name(call.func).startswith("torch.optim.") and call.args]
    for call in optimizers:
        if any(may_follow(s, call, one) for one in s.find(*SHARDING)):
            yield call, "the optimizer is made before the model is sharded: its parameters are replaced later"


def bypass(s: Script) -> Findings:
    """Does training call the wrapper? Else nothing is averaged, and no error tells."""
    wrapped = [part for call in s.find(*WRAPPERS) for part in call.args[:1]]
    models = {one for part in wrapped for one in s.origins(part)}
    made = {one for one in models if isinstance(one, ast.Call)}
    parts = {one for call in methods(s, "backward") for one in s.origins(receiver(call), deep=True)}
    for call in [one for one in s.calls if one in parts]:  # all that takes part in a loss
        if getattr(call.func, "attr", "") == "module" and comes_from(s, receiver(call), *WRAPPERS):
            yield call, "the module inside the wrapper is called: call the wrapper"
        handed_on = call.args if s.callees(call) else []
        for one in [call.func, *handed_on]:
            plain = isinstance(one, ast.Name | ast.Attribute) and not made.isdisjoint(s.origins(one))
            if plain and not comes_from(s, one, *WRAPPERS):
                yield call, "the model computes this loss, not its wrapper"


def batchnorm(s: Script) -> Findings:
    """Is batch norm converted before DDP wraps it? Else each rank normalizes by its own batch alone."""
    converted = [one for one in s.calls if identifier(one.func) in CONVERTING]
    for wrapper in s.find(*WRAPPERS):
        late = [one for one in converted if may_follow(s, wrapper, one)]
        if late:
            yield late[0], "converted after it was wrapped: convert first"
        elif s.find(*NORMS) and not any(identifier(one) in CONVERTING for one in s.nodes):
            yield wrapper, "wraps a model with batch norm: call convert_sync_batchnorm before"


def scaler(s: Script) -> Findings:
    """Is the GradScaler used as a whole? Else fp16 gradients vanish, or are clipped at another scale."""
    for made in s.find("GradScaler"):
        lacks = [name for name in ("scale", "step", "update") if not methods(s, name, of="GradScaler")]
        if not s.find("autocast"):
            lacks.append("autocast")
        if s.find("clip_grad_norm_") and not methods(s, "unscale_", of="GradScaler"):
            lacks.append("unscale_")
        if lacks:
            yield made, f"a GradScaler without {', '.join(lacks)}"


def saved(s: Script) -> Findings:
    """Is the scaler in the checkpoint? Else a resumed run begins with another scale and skips steps."""
    holders = [one for one in s.nodes if isinstance(one, ast.Dict | ast.List | ast.Tuple)]
    parts = [part for one in holders for part in ast.iter_child_nodes(one)]
    held = any(comes_from(s, part, "GradScaler") for part in parts)
    stored = methods(s, "state_dict", of="GradScaler") or (held and methods(s, "state_dict"))
    for call in s.calls:
        if s.name(call.func) in SAVING and s.find("GradScaler") and not stored:
            yield call, "the state of the GradScaler is not saved"


def save(s: Script) -> Findings:
    """Does one rank alone save? Else N processes write into one file at the same time."""
    for call in s.calls:
        if s.name(call.func) in SAVING and not on_one_rank(s, call):
            yield call, "every rank writes this file: save on rank 0"


def load(s: Script) -> Findings:
    """Does each rank load onto its own device? Else all load onto the GPU of the rank that saved."""
    for call in s.calls:
        if s.name(call.func) == "torch.load" and not argument(s, call, "map_location", 1):
            yield call, "torch.load without map_location"


RULES = (wrap, order, bypass, batchnorm, scaler, saved, save, load)
