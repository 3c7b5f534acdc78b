"""torch's plans on the GPT: `parallelize_module` makes the same collectives as we do by hand.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_17/proof_plans.py
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT
from shared.training.one_process import Step, assert_same_training, step_of
from shared.training.trial import Trial

from lab_17_torch import Block as PlainBlock
from lab_17_torch import plan_of_block
from lesson_17 import proof_gpt as tp
from lesson_17.proof_gpt import Config

SPLIT = (*tp.SPLIT_BY_ROWS_OF_WEIGHT, *tp.SPLIT_BY_COLUMNS_OF_WEIGHT, "head")
SHORT = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS"}


def without_sequence() -> dict[str, ParallelStyle]:
    """The plan of a block that takes and returns the whole sequence on each rank."""
    return {
        "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }


def plan_of(sequence: bool) -> dict[str, ParallelStyle]:
    """What parallelize_module does with each module. Logits stay split by vocabulary, for ``loss_parallel``.

    Args:
        sequence: between the split layers each rank keeps a part of the sequence.
    """
    between = Shard(1) if sequence else Replicate()
    plan: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1),
            use_local_output=False,
        ),
    }
    of_block = plan_of_block() if sequence else without_sequence()
    for name, style in of_block.items():
        if name != "mlp.gate":  # this GPT has none
            plan[f"blocks.*.{name}"] = style
    if sequence:
        plan["norm"] = SequenceParallel()
        plan["positions"] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    return plan


def parallelized(model: GPT, mesh: DeviceMesh, plan: dict[str, ParallelStyle]) -> GPT:
    """``model`` by the plan, and what a plan does not do: fewer heads here, and the tie."""
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        if block.attention.heads % mesh.size():  # torch does not look
            raise CourseError(f"{block.attention.heads} heads cannot be divided by {mesh.size()} ranks")
        block.attention.heads //= mesh.size()
    model.head.weight = model.tokens.weight  # parallelize_module has made two parameters of one
    return model


def assert_carried_out(model: nn.Module, layers: tuple[str, ...] = SPLIT) -> None:
    """Raise ``CourseError`` unless each weight of these layers is a DTensor of which each rank has a part."""
    for name, p in model.named_parameters(remove_duplicate=False):
        *_, layer, kind = name.split(".")
        if layer not in layers or kind != "weight":
            continue
        if not isinstance(p, DTensor) or not any(placement.is_shard() for placement in p.placements):
            raise CourseError(f"{name} is whole on each rank: does the plan name it rightly?")


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a DTensor; what is Partial is summed up. Collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_step(loss: torch.Tensor, model: nn.Module) -> Step:
    step = step_of(loss, model.named_parameters())
    for tensors in (step.gradients, step.parameters):
        for name, tensor in tensors.items():
            tensors[name] = full(tensor)
    step.loss = full(step.loss)
    return step


def texts(forward: CommRecord, backward: CommRecord, step: CommRecord) -> dict[str, str]:
    """{part of a training step: its collectives, such as "5 AR"}."""
    collectives = {}
    for name, log in (("forward", forward), ("backward", backward), ("optimizer", step)):
        counts = log.counts()
        made = [f"{counts[kind]} {short}" for kind, short in SHORT.items() if counts[kind]]
        collectives[name] = " + ".join(made) or "none"
    return collectives


def train(
    model: nn.Module, loss_of: Callable, steps: int, lr: float, build: Callable = torch.optim.SGD
) -> tuple:
    """Steps, and the collectives of the first one. Backward runs inside loss_parallel, too."""
    optimizer = build(model.parameters(), lr, foreach=False)  # foreach refuses a mix with DTensors
    done = []
    calls: dict[str, str] = {}
    for number in range(steps):
        optimizer.zero_grad()
        with loss_parallel():
            with record() as forward:
                loss = loss_of(model, number)
            with record() as backward:
                loss.backward()
        with record() as step:
            optimizer.step()
        calls = calls or texts(forward, backward, step)
        done.append(whole_step(loss, model))
    return done, calls


def check_calls(name: str, found: dict[str, str], *expected: str) -> None:
    """Raise ``CourseError`` unless forward, backward and the optimizer's step call what is expected."""
    wanted = dict(zip(("forward", "backward", "optimizer"), expected, strict=True))
    print_on_rank_0(f"{name}: {', '.join(f'{part} {calls}' for part, calls in found.items())}")
    if found != wanted:
        raise CourseError(f"{name}: expected {wanted}")


def tell_gpt_calls(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """Collectives of the GPT by three plans, each checked against one process."""
    n = cfg.layers
    by_hand = (f"{1 + 2 * n + 3} AR", f"{2 * n + 1} AR", "none")  # as proof_gpt counts them
    three_f = plan_of(sequence=False)
    del three_f["blocks.*.attention"]  # then query, key and value take their input one by one
    plans = {
        "TP": (plan_of(sequence=False), by_hand),
        "TP, no PrepareModuleInput": (three_f, (by_hand[0], f"{4 * n + 1} AR", "none")),
        "TP + SP": (
            plan_of(sequence=True),
            (
                f"3 AR + {2 * n + 1} AG + {2 * n + 1} RS",
                f"{2 * n + 2} AG + {2 * n + 1} RS",
                f"{4 * n + 2} AR",
            ),
        ),
    }
    # One truth, although a plan sends rank 0's numbers: it does so for what it splits only.
    trial = Trial(tp.gpt_config(group.world_size, cfg), group, cfg)
    alone = trial.alone()
    for name, (plan, expected) in plans.items():
        model = parallelized(trial.model(), mesh, plan)
        assert_carried_out(model)
        ours, calls = train(model, trial.loss_alone, cfg.steps, cfg.lr)
        assert_same_training(name, ours, alone, cfg.tolerance)
        check_calls(f"GPT, {name}", calls, *expected)
        if isinstance(model.norm.weight, DTensor) and not model.norm.weight.grad.placements[0].is_partial():
            raise CourseError(f"{name}: the norm's gradient should have been a partial sum after backward")
    model = parallelized(trial.model(), mesh, plan_of(sequence=True))
    _, calls = train(model, trial.loss_alone, 1, cfg.lr, torch.optim.AdamW)
    print_on_rank_0(f"GPT, TP + SP, AdamW in place of SGD: optimizer {calls['optimizer']}")
    if calls["optimizer"] != f"{3 * (4 * n + 2)} AR":  # it uses a gradient three times
        raise CourseError(f"AdamW: expected {3 * (4 * n + 2)} AR")


def check_partial_gradients(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """A norm's gradient stays a partial sum when it is clipped. Summed once, it costs the step nothing."""
    trial = Trial(tp.gpt_config(group.world_size, cfg), group, cfg)
    model = parallelized(trial.model(), mesh, plan_of(sequence=True))
    optimizer = torch.optim.AdamW(model.parameters(), cfg.lr, foreach=False)
    with loss_parallel():
        trial.loss_alone(model, 0).backward()
    nn.utils.clip_grad_norm_(model.norm.parameters(), max_norm=1e-3)
    if not model.norm.weight.grad.placements[0].is_partial():
        raise CourseError("clip_grad_norm_ should have left a partial sum")
    with record() as sums:
        for p in model.parameters():
            if isinstance(p, DTensor) and p.grad.placements[0].is_partial():
                p.grad = p.grad.redistribute(placements=[Replicate()])
    with record() as step:
        optimizer.step()
    made = (sums.counts()["all_reduce"], step.counts()["all_reduce"])
    print_on_rank_0(f"GPT, TP + SP, AdamW, gradients summed once: {made[0]} AR, optimizer {made[1]} AR")
    if made != (4 * cfg.layers + 2, 0):
        raise CourseError(f"gradients summed once: {made} all-reduces")


def check_gated_block(mesh: DeviceMesh, group: Group) -> None:
    """The lab's gated block gathers once for the attention and once for gate and up; without that, twice."""
    n = group.world_size
    each = plan_of_block()
    each.pop("mlp", None)
    for name in ("mlp.gate", "mlp.up"):
        each[name] = ColwiseParallel(input_layouts=Shard(1))
    for name, plan, expected in (
        ("gate and up share a gather", plan_of_block(), 2),
        ("gate and up each gather", each, 3),
    ):
        block = PlainBlock(8 * n, 2 * n).to(group.device)
        parallelize_module(block, mesh, plan)
        with record() as log:
            block(torch.ones(1, 2, 8 * n, device=group.device))
        gathers = log.counts()["all_gather"]
        print_on_rank_0(f"{name}: a block's forward pass has {gathers} AG")
        if gathers != expected:
            raise CourseError(f"{name}: {gathers} all-gathers, expected {expected}")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        check_gated_block(mesh, group)
        print_on_rank_0(
            "AR is an all-reduce, AG an all-gather, RS a reduce-scatter; SP is sequence parallelism"
        )
        tell_gpt_calls(mesh, group, cfg)
        check_partial_gradients(mesh, group, cfg)


if __name__ == "__main__":
    run(main, Config())
