"""torch's schedules and ours on the same stages; how stages clip; what torch keeps, refuses, computes again.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_16/proof_equal.py
"""

import math
import weakref
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.utils.checkpoint import checkpoint

from shared.comm.record import record
from shared.runtime.errors import CourseError, waited_in_vain
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_equal, gradients

import lab_16_gpipe as by_hand
from lab_16_executor import Pipeline, gpipe, one_f_one_b
from lab_16_torch import clip_stages
from lab_16_torch import run as step_of_torch

SCHEDULES = {"GPipe": (gpipe, ScheduleGPipe), "1F1B": (one_f_one_b, Schedule1F1B)}


@dataclass(frozen=True)
class Config:
    width: int = 16
    rows: int = 2  # of a micro-batch
    patience_s: float = 3.0  # for a message that does not come
    tolerance: float = 1e-12  # float64
    max_norm: float = 0.1
    vocabulary: int = 4096  # of the last stage whose logits are kept


class Recomputed(nn.Module):
    """A stage that recomputes its activations. ``calls`` counts how often it goes forward."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage
        self.calls = 0

    def count(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.stage(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.count, x, use_reentrant=False)


def build(group: Group, cfg: Config) -> nn.Module:
    """This rank's stage; each rank begins with other numbers."""
    torch.manual_seed(1 + group.rank)
    layers = (nn.Linear(cfg.width, cfg.width), nn.Tanh(), nn.Linear(cfg.width, cfg.width), nn.Tanh())
    return nn.Sequential(*layers).double().to(group.device)


def batch(rows: int, group: Group, cfg: Config) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(16)
    x = torch.randn(2, rows, cfg.width, dtype=torch.float64, generator=generator).to(group.device)
    return x[0], x[1]


def mean_of_squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def stage_of(model: nn.Module, group: Group, process_group: dist.ProcessGroup | None = None) -> PipelineStage:
    return PipelineStage(model, group.rank, group.world_size, group.device, group=process_group)


def check_clipping(group: Group, cfg: Config) -> None:
    """``clip_stages`` leaves the gradients that clipping leaves in one process."""
    mine = by_hand.layers_of(group.rank, group.world_size)
    stage = by_hand.layers(mine).to(group.device)
    x, labels = by_hand.batch(group.device)
    number = by_hand.MICRO_BATCHES
    by_hand.gpipe(stage, x.chunk(number), labels.chunk(number))
    alone = by_hand.layers(range(by_hand.LAYERS)).to(group.device)
    by_hand.share_of_loss(alone(x), labels).backward()
    own = nn.utils.get_total_norm([gradient for _, gradient in gradients(stage)])
    expected = nn.utils.clip_grad_norm_(alone.parameters(), cfg.max_norm)
    if group.rank == 0:
        stage.append(nn.Linear(1, 1, dtype=torch.float64, device=group.device))  # unused: no gradient
    by_itself, _ = dist.new_subgroups(group_size=1)  # a pipeline of one rank, beside others
    alone_norm = clip_stages(stage, math.inf, group=by_itself)
    assert_equal("clip_stages in a group: norm", alone_norm, own, cfg.tolerance)
    half = nn.Linear(1, 1, bias=False, dtype=torch.float16, device=group.device)
    half.weight.grad = torch.full_like(half.weight, 300)  # 300 * 300 is more than a float16 can hold
    large = torch.tensor(300.0, dtype=torch.float64, device=group.device)
    assert_equal("clip_stages in float16: norm", clip_stages(half, math.inf, group=by_itself), large, 0.0)
    assert_equal("clip_stages: norm", clip_stages(stage, cfg.max_norm), expected, cfg.tolerance)
    same = nn.Sequential(*alone[mine.start : mine.stop])
    assert_all_equal("clip_stages", gradients(stage), gradients(same), cfg.tolerance)
    norms = ", ".join(f"{norm:.3f}" for norm in gather_on_rank_0(own.item()))
    print_on_rank_0(f"clipped at {cfg.max_norm}: norm in one process {expected:.3f}, of the stages {norms}")


def check_outputs(group: Group, cfg: Config) -> None:
    """With ``return_outputs=False`` the last rank keeps no logits; by default those of all micro-batches."""
    micro_batches = 2 * group.world_size
    x, _ = batch(micro_batches * cfg.rows, group, cfg)
    kept = {}
    for name, options in (("the default", {}), ("return_outputs=False", {"return_outputs": False})):
        model = build(group, cfg)
        if group.rank == group.world_size - 1:
            model.append(nn.Linear(cfg.width, cfg.vocabulary, dtype=torch.float64, device=group.device))
        stage = stage_of(model, group)
        schedule = Schedule1F1B(stage, micro_batches, loss_fn=lambda output, _: output.square().mean())
        inputs = (x,) if group.rank == 0 else ()
        last = {"target": x} if group.rank == group.world_size - 1 else {}
        returned = schedule.step(*inputs, **last, **options)
        size = sum(chunk.nbytes for chunk in stage.output_chunks)
        kept[name] = (len(stage.output_chunks), size, 0 if returned is None else returned.nbytes)
    for name, (chunks, size, returned) in (gather_on_rank_0(kept) or [{}])[-1].items():
        print(f"{name}: the last rank keeps {chunks} outputs, {size:,} bytes; returns {returned:,}")
    if kept["return_outputs=False"] != (0, 0, 0):
        raise CourseError("with return_outputs=False no output should have been kept")


def check_validation(group: Group, cfg: Config) -> None:
    """``eval`` builds the graph of every micro-batch; with gradients off, as in the lab, of none."""
    micro_batches = 2 * group.world_size
    x, y = batch(micro_batches * cfg.rows, group, cfg)
    outputs: list[weakref.ref] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        outputs.append(weakref.ref(output))
        return mean_of_squares(output, target)

    def kept() -> tuple[int, int]:
        alive = [output() for output in outputs if output() is not None]
        outputs.clear()
        return len(alive), sum(output.requires_grad for output in alive)

    model = build(group, cfg)
    schedule = Schedule1F1B(stage_of(model, group), micro_batches, loss_fn=loss)
    inputs = (x,) if group.rank == 0 else ()
    last = group.rank == group.world_size - 1
    schedule.eval(*inputs, **({"target": y} if last else {}), return_outputs=False)
    by_itself = kept()
    step_of_torch(schedule, {group.rank: model}, x, y, train=False)
    in_the_lab = kept()
    if model.training:
        raise CourseError("run leaves the stage in training mode, so dropout stays on in validation")
    everyones = gather_on_rank_0({"eval": by_itself, "eval without gradients": in_the_lab})
    for name, (number, graphs) in (everyones or [{}])[-1].items():
        print(f"{name}: the last rank keeps {number} outputs, {graphs} with their graph")
    if last and (by_itself, in_the_lab) != ((micro_batches, micro_batches), (micro_batches, 0)):
        raise CourseError(f"eval keeps (outputs, graphs): {by_itself}, without gradients {in_the_lab}")


def compare(name: str, group: Group, cfg: Config) -> None:
    """Gradients and messages of torch's schedule and of ours, on the same stage."""
    micro_batches = 2 * group.world_size
    x, y = batch(micro_batches * cfg.rows, group, cfg)
    labels = y.chunk(micro_batches)
    write, torchs = SCHEDULES[name]

    def share_of_loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return (output - label).square().sum() / x.numel()

    ours = build(group, cfg)
    pipeline = Pipeline({group.rank: ours}, range(group.world_size), group.device, x.dtype)
    pieces = list(x.chunk(micro_batches))
    shapes = [piece.shape for piece in pieces]
    actions = write(group.rank, group.world_size, micro_batches)
    with record() as log:
        loss = pipeline.step(actions, pieces, shapes, lambda number, z: share_of_loss(z, labels[number]))
    messages = log.count("send")

    for scale in (False, True):
        theirs = build(group, cfg)
        options = {"loss_fn": share_of_loss, "scale_grads": scale}
        schedule = torchs(stage_of(theirs, group), micro_batches, **options)
        models = {group.rank: theirs}
        step_of_torch(schedule, models, x, y)  # the first step also finds out the shapes
        theirs.zero_grad()
        with record() as log:
            their_loss = step_of_torch(schedule, models, x, y)
        factor = micro_batches if scale else 1
        scaled = [(parameter, gradient * factor) for parameter, gradient in gradients(theirs)]
        assert_all_equal(f"{name}, scale_grads={scale}", scaled, gradients(ours), cfg.tolerance)
        assert_equal(f"{name}: loss", their_loss, loss, cfg.tolerance)
        if log.count("send") != messages:
            raise CourseError(f"{name}: torch sends {log.count('send')} messages, we send {messages}")
    print_on_rank_0(f"torch's {name}: gradients and messages as ours")


def tell_refusals(group: Group, cfg: Config) -> None:
    """What torch says to too few micro-batches, and to uneven ones."""
    refused = {}
    try:
        Schedule1F1B(stage_of(build(group, cfg), group), group.world_size - 1, loss_fn=mean_of_squares)
    except ValueError as error:
        refused["1F1B with fewer micro-batches than stages"] = " ".join(str(error).split())
    impatient = dist.new_group(timeout=timedelta(seconds=cfg.patience_s))
    model = build(group, cfg)
    schedule = ScheduleGPipe(stage_of(model, group, impatient), 3, loss_fn=mean_of_squares)
    uneven = "8 rows in 3 micro-batches"
    try:
        step_of_torch(schedule, {group.rank: model}, *batch(8, group, cfg))
        refused[uneven] = ""
    except Exception as error:  # of which kind depends on the rank: one finds it, others wait for that one
        text = str(error).splitlines()[0].rpartition("] ")[2]  # without the place in gloo's source
        in_vain = waited_in_vain(text)
        refused[uneven] = "waits in vain for another rank" if in_vain else f"{type(error).__name__}: {text}"
    everyones = gather_on_rank_0(refused)
    for case in refused if group.rank == 0 else ():
        print(f"{case}:")
        for text in dict.fromkeys(texts[case] for texts in everyones):
            ranks = [rank for rank, texts in enumerate(everyones) if texts[case] == text]
            print(f"    ranks {ranks}: {text}")


def tell_forward_passes(group: Group, cfg: Config) -> None:
    """How often a micro-batch goes forward through this rank's two stages, which recompute."""
    micro_batches = 2 * group.world_size
    x, y = batch(micro_batches * cfg.rows, group, cfg)
    for make in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble):
        total = 2 * group.world_size
        models = {n: Recomputed(build(group, cfg)) for n in (group.rank, group.world_size + group.rank)}
        stages = [PipelineStage(model, number, total, group.device) for number, model in models.items()]
        schedule = make(stages, micro_batches, loss_fn=mean_of_squares)
        step_of_torch(schedule, models, x, y)  # the first step also finds out the shapes
        for model in models.values():
            model.calls = 0
        step_of_torch(schedule, models, x, y)
        most = max(gather_on_rank_0(max(model.calls for model in models.values())), default=0)
        name = make.__name__.removeprefix("Schedule")
        print_on_rank_0(f"torch's {name}, stages that recompute: forward {most / micro_batches:g} times")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        check_clipping(group, cfg)
        check_outputs(group, cfg)
        check_validation(group, cfg)
        for name in SCHEDULES:
            compare(name, group, cfg)
        tell_refusals(group, cfg)
        tell_forward_passes(group, cfg)


if __name__ == "__main__":
    run(main, Config())
