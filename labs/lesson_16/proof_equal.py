"""torch's schedules and ours on the same stages: equal; what torch scales, refuses and computes again.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_16/proof_equal.py
"""

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
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_equal, gradients

import lab_16_gpipe as by_hand
from lab_16_executor import Pipeline, gpipe, one_f_one_b
from lab_16_torch import clip_stages, forward_and_backward, schedule_of

SCHEDULES = {"GPipe": (gpipe, ScheduleGPipe), "1F1B": (one_f_one_b, Schedule1F1B)}


@dataclass(frozen=True)
class Config:
    width: int = 16
    rows: int = 2  # of a micro-batch
    patience_s: float = 3.0  # for a message that does not come
    tolerance: float = 1e-12  # float64
    max_norm: float = 0.1
    vocabulary: int = 4096  # of the last stage whose logits are kept


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


def prove_plain_lab(group: Group, cfg: Config) -> None:
    """lab_16_torch.py leaves the gradients that GPipe by hand leaves in the same layers."""
    ranks = group.world_size
    mine = range(by_hand.LAYERS * group.rank // ranks, by_hand.LAYERS * (group.rank + 1) // ranks)
    ours, theirs = by_hand.layers(mine).to(group.device), by_hand.layers(mine).to(group.device)
    torch.manual_seed(16)
    x = torch.randn(by_hand.ROWS, by_hand.WIDTH, dtype=torch.float64).to(group.device)
    labels = torch.randint(by_hand.WIDTH, (by_hand.ROWS,)).to(group.device)
    number = by_hand.MICRO_BATCHES
    by_hand.gpipe(ours, list(x.chunk(number)), list(labels.chunk(number)))
    forward_and_backward(schedule_of(theirs, group.device), x, labels)
    assert_all_equal("lab_16_torch", gradients(theirs), gradients(ours), cfg.tolerance)

    alone = by_hand.layers(range(by_hand.LAYERS)).to(group.device)
    by_hand.share_of_loss(alone(x), labels).backward()
    own = nn.utils.get_total_norm([gradient for _, gradient in gradients(theirs)]).item()
    expected = nn.utils.clip_grad_norm_(alone.parameters(), cfg.max_norm)
    assert_equal("lab_16_torch: norm", clip_stages(theirs, cfg.max_norm), expected, cfg.tolerance)
    clipped = [
        (name, alone[mine[int(name[0])]].get_parameter(name[2:]).grad) for name, _ in gradients(theirs)
    ]
    assert_all_equal("lab_16_torch, clipped,", gradients(theirs), clipped, cfg.tolerance)
    norms = ", ".join(f"{norm:.3f}" for norm in gather_on_rank_0(own))
    print_on_rank_0(f"norm in one process {expected:.3f}, of the stages' own gradients {norms}")


def kept_outputs(group: Group, cfg: Config) -> dict[str, list[int]]:
    """Micro-batches whose logits the last rank keeps after a step, and their bytes, by ``return_outputs``."""
    micro_batches = 2 * group.world_size
    x, _ = batch(micro_batches * cfg.rows, group, cfg)
    kept = {}
    for name, options in (("the default", {}), ("return_outputs=False", {"return_outputs": False})):
        model = build(group, cfg)
        if group.rank == group.world_size - 1:
            model.append(nn.Linear(cfg.width, cfg.vocabulary, dtype=torch.float64, device=group.device))
        stage = PipelineStage(model, group.rank, group.world_size, group.device)
        schedule = Schedule1F1B(stage, micro_batches, loss_fn=lambda output, _: output.square().mean())
        inputs = (x,) if group.rank == 0 else ()
        last = {"target": x} if group.rank == group.world_size - 1 else {}
        returned = schedule.step(*inputs, **last, **options)
        chunks = stage.output_chunks
        of_returned = 0 if returned is None else returned.nbytes
        kept[name] = [len(chunks), sum(chunk.nbytes for chunk in chunks), of_returned]
    return kept


def compare(name: str, group: Group, cfg: Config) -> dict:
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

    counts = []
    for scale in (False, True):
        theirs = build(group, cfg)
        stage = PipelineStage(theirs, group.rank, group.world_size, group.device)
        schedule = torchs(stage, micro_batches, loss_fn=share_of_loss, scale_grads=scale)
        forward_and_backward(schedule, x, y)  # the first step also finds out the shapes
        theirs.zero_grad()
        with record() as log:
            losses = forward_and_backward(schedule, x, y)
        counts.append(log.count("send"))
        factor = micro_batches if scale else 1
        scaled = [(parameter, gradient * factor) for parameter, gradient in gradients(theirs)]
        assert_all_equal(f"{name}, scale_grads={scale}", scaled, gradients(ours), cfg.tolerance)
        if group.rank == group.world_size - 1:
            assert_equal(f"{name}: loss", torch.stack(losses).sum(), loss, cfg.tolerance)
    if counts != [messages] * 2:
        raise CourseError(f"{name}: torch sends {counts} messages, we send {messages}")
    return {"messages": messages}


def refusals(group: Group, cfg: Config) -> dict[str, str]:
    """What torch says to too few micro-batches, to a wrong number of them, and to uneven ones."""
    ranks = group.world_size
    refused = {}
    try:
        Schedule1F1B(stage_of(group, cfg), ranks - 1, loss_fn=mean_of_squares)
    except ValueError as error:
        refused["1F1B with fewer micro-batches than stages"] = " ".join(str(error).split())
    schedule = ScheduleGPipe(stage_of(group, cfg), 4, loss_fn=mean_of_squares)
    x, y = batch(8, group, cfg)
    try:
        schedule.step(arg_mbs=[(x,), (x,)])
    except ValueError as error:
        refused["two inputs for four micro-batches"] = str(error)
    impatient = dist.new_group(timeout=timedelta(seconds=cfg.patience_s))
    schedule = ScheduleGPipe(stage_of(group, cfg, impatient), 3, loss_fn=mean_of_squares)
    try:
        forward_and_backward(schedule, x, y)
        refused["8 rows in 3 micro-batches"] = ""
    except Exception as error:  # of which kind depends on the rank: one finds it, others wait for that one
        text = str(error).splitlines()[0].rpartition("] ")[2]  # without the place in gloo's source
        in_vain = waited_in_vain(text)
        outcome = "waits in vain for another rank" if in_vain else f"{type(error).__name__}: {text}"
        refused["8 rows in 3 micro-batches"] = outcome
    return refused


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


def forward_passes(group: Group, cfg: Config) -> dict[str, list[float]]:
    """How often a micro-batch goes forward through this rank's two stages, which recompute."""
    micro_batches = 2 * group.world_size
    x, y = batch(micro_batches * cfg.rows, group, cfg)
    passes = {}
    for make in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble):
        modules = [Recomputed(build(group, cfg)), Recomputed(build(group, cfg))]
        stages = []
        for number, module in zip((group.rank, group.world_size + group.rank), modules, strict=True):
            stages.append(PipelineStage(module, number, 2 * group.world_size, group.device))
        schedule = make(stages, micro_batches, loss_fn=mean_of_squares)
        forward_and_backward(schedule, x, y)  # the first step also finds out the shapes
        for module in modules:
            module.calls = 0
        forward_and_backward(schedule, x, y)
        name = make.__name__.removeprefix("Schedule")
        passes[name] = [module.calls / micro_batches for module in modules]
    return passes


def stage_of(group: Group, cfg: Config, process_group: dist.ProcessGroup | None = None) -> PipelineStage:
    return PipelineStage(build(group, cfg), group.rank, group.world_size, group.device, group=process_group)


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        prove_plain_lab(group, cfg)
        print_on_rank_0("lab_16_torch: gradients as by hand")
        kept = gather_on_rank_0(kept_outputs(group, cfg))[-1:]
        for name, (chunks, size, returned) in (kept[0] if kept else {}).items():
            print(f"{name}: the last rank keeps {chunks} outputs, {size:,} bytes; returns {returned:,}")
        if kept and kept[0]["return_outputs=False"] != [0, 0, 0]:
            raise CourseError("with return_outputs=False no output should have been kept")
        results = {}
        for name in SCHEDULES:
            results[name] = compare(name, group, cfg)
            print_on_rank_0(f"torch's {name}: gradients and messages as ours")
        refused = refusals(group, cfg)
        everyones = gather_on_rank_0(refused)
        if group.rank == 0:
            for case in refused:
                print(f"{case}:")
                for text in dict.fromkeys(texts[case] for texts in everyones):
                    ranks = [rank for rank, texts in enumerate(everyones) if texts[case] == text]
                    print(f"    ranks {ranks}: {text}")
        passes = forward_passes(group, cfg) if group.world_size > 1 else {}
        for name in passes:
            most = max((max(there) for there in gather_on_rank_0(passes[name])), default=0)
            print_on_rank_0(f"torch's {name}, stages that recompute: forward {most:g} times")
        record_results("16_equal", {"schedules": results, "refused": refused, "passes": passes})


if __name__ == "__main__":
    run(main, Config())
