"""Sequence parallelism: between the split layers each rank has a part of the sequence, for the same traffic.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_17/proof_sequence.py
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.flat import sum_over_ranks
from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, Block
from shared.training.one_process import Step, assert_same_training
from shared.training.parity import assert_same_on_every_rank
from shared.training.storages import OTHER, PARAMETERS, PeakByKind
from shared.training.trial import Trial

from lesson_17 import proof_gpt as tp


@dataclass(frozen=True)
class Config(tp.Config):
    dropout: float = 0.2
    rows_measured: int = 16  # so that activations are most of the memory, and headers few of the bytes


def gather_sequence(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """(batch, length / N, width) to (batch, length, width). The collective joins first dimensions."""
    part = x.transpose(0, 1).contiguous()
    whole = part.new_empty(len(part) * dist.get_world_size(group), *part.shape[1:])
    dist.all_gather_into_tensor(whole, part, group=group)
    return whole.transpose(0, 1).contiguous()  # else each layer that it enters makes a copy


def scatter_sums(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """(batch, length, width) to (batch, length / N, width): this rank's part of the sum over the ranks."""
    whole = x.transpose(0, 1).contiguous()
    part = whole.new_empty(len(whole) // dist.get_world_size(group), *whole.shape[1:])
    dist.reduce_scatter_tensor(part, whole, group=group)
    return part.transpose(0, 1).contiguous()


class GatherSequence(torch.autograd.Function):
    """In place of f. Forward all-gather, backward reduce-scatter. Korthikanti, 2022, arXiv 2205.05198."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return gather_sequence(x, group)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return scatter_sums(gradient, ctx.group), None


class ScatterSums(torch.autograd.Function):
    """In place of g. Forward reduce-scatter, backward all-gather."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return scatter_sums(x, group)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gather_sequence(gradient, ctx.group), None


def split_sequence(model: GPT, group: dist.ProcessGroup) -> GPT:
    """``split_gpt``, and what is left whole there works on this rank's part of the sequence."""

    def own_places(module: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (tp.part_of(inputs[0], 0, group),)

    tp.split_gpt(model, group, GatherSequence.apply, ScatterSums.apply)
    model.positions.register_forward_pre_hook(own_places)
    return model


def sum_gradients_of_whole_parameters(model: GPT, group: dist.ProcessGroup, but_not: str = "nothing") -> None:
    """Norms, positions and the biases of rows saw only a part of the sequence here: add the others' up."""
    whole = {name: p for name, p in model.named_parameters() if not is_split(name)}
    gradients = [p.grad for name, p in whole.items() if but_not not in name]
    sum_over_ranks(gradients, group)


def is_split(name: str) -> bool:
    *_, layer, kind = name.split(".")
    by_columns = layer in tp.SPLIT_BY_COLUMNS_OF_WEIGHT and kind == "weight"
    return by_columns or layer in tp.SPLIT_BY_ROWS_OF_WEIGHT


class DropoutOfPart(nn.Module):
    """Dropout on a part of the sequence, drawn as one process draws it: the mask of all, then our part."""

    def __init__(self, p: float, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.p = p
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = x.new_ones(x.shape[0], x.shape[1] * dist.get_world_size(self.group), x.shape[2])
        return x * tp.part_of(F.dropout(whole, self.p, self.training), 1, self.group)


def seeded(loss_of: Callable, own: int = 0) -> Callable:
    """``loss_of`` whose dropout draws from a generator seeded by the step and by ``own``."""

    def loss_of_step(model: GPT, step: int) -> torch.Tensor:
        torch.manual_seed(1000 * step + own)
        return loss_of(model, step)

    return loss_of_step


def with_dropout(model: GPT, cfg: Config) -> GPT:
    for block in model.blocks:
        block.dropout.p = cfg.dropout
    return model


def outcome(name: str, ours: list[Step], alone: list[Step], cfg: Config) -> str:
    """What the comparison with one process says."""
    try:
        assert_same_training(name, ours, alone, cfg.tolerance, tp.part_in(dist.group.WORLD))
    except ParityError as error:
        return str(error).split(" by ")[0]
    return f"{name}: equal to one process after each of {cfg.steps} steps"


def compare_training(trial: Trial, cfg: Config) -> None:
    """Sequence parallelism beside one process, and without the sum of LayerNorm's gradients."""
    members = dist.group.WORLD
    alone = trial.alone()

    for name, but_not in (("sequence parallel", "nothing"), ("LayerNorm's gradients not summed", "norm")):
        ours = trial.train(
            split_sequence(trial.model(), members),
            tp.loss_split(members, trial),
            lambda gpt, _, but_not=but_not: sum_gradients_of_whole_parameters(gpt, members, but_not),
        )
        verdict = outcome(name, ours, alone, cfg)
        print_on_rank_0(verdict)
        if ("equal" in verdict) != (but_not == "nothing"):
            raise CourseError(f"{verdict}, which is not what this lab shows")


def compare_dropout(trial: Trial, cfg: Config) -> None:
    """Where activations are whole, all ranks must drop the same; where each has a part, not the same."""
    group, members = trial.group, dist.group.WORLD
    of_split = seeded(tp.loss_split(members, trial))
    alone = trial.train(with_dropout(trial.model(), cfg), seeded(trial.loss_alone))
    ours = trial.train(tp.split_gpt(with_dropout(trial.model(), cfg), members), of_split)
    same_seed = outcome("dropout on whole activations, one seed", ours, alone, cfg)
    model = split_sequence(trial.model(), members)
    for block in model.blocks:
        block.dropout = DropoutOfPart(cfg.dropout, members)
    ours = trial.train(model, of_split, lambda gpt, _: sum_gradients_of_whole_parameters(gpt, members))
    parts = outcome("dropout on parts of one mask", ours, alone, cfg)
    for verdict in (same_seed, parts):
        print_on_rank_0(verdict)
        if "equal" not in verdict:
            raise CourseError(f"{verdict}, which is not what this lab shows")

    x = torch.ones(cfg.rows, model.cfg.context, model.cfg.width, dtype=model.cfg.dtype, device=group.device)
    block = tp.split_gpt(with_dropout(trial.model(), cfg), members).blocks[0]
    torch.manual_seed(group.rank)
    try:
        assert_same_on_every_rank("dropout on whole activations, a seed per rank:", [("output", block(x))])
        raise CourseError("with other masks the ranks should have had other outputs")
    except ParityError as error:
        print_on_rank_0(str(error))
    for name, seed in (("one seed", 0), ("a seed per rank", group.rank)):
        torch.manual_seed(seed)
        same = equal_masks(F.dropout(tp.part_of(x, 1), cfg.dropout))
        print_on_rank_0(f"dropout on parts, {name}: rank 1 drops {same:.0%} of what rank 0 drops")
        if (same == 1.0) != (name == "one seed"):
            raise CourseError(f"{name}: {same:.0%} of the masks are equal, which is not what this lab shows")


def equal_masks(dropped: torch.Tensor) -> float:
    """Which part of the places that rank 0 drops, rank 1 drops as well."""
    masks = [torch.empty_like(dropped) for _ in range(dist.get_world_size())]
    dist.all_gather(masks, dropped)
    here = masks[0] == 0
    return (masks[1][here] == 0).double().mean().item()


def traffic(block: Block, x: torch.Tensor) -> CommRecord:
    """Collectives of a forward and backward."""
    with record() as log:
        block(x.clone().requires_grad_()).square().mean().backward()
    return log


def compare_traffic(trial: Trial, cfg: Config) -> None:
    """By rule the same bytes."""
    group, members = trial.group, dist.group.WORLD
    whole = tp.split_gpt(trial.model(), members)
    parts = split_sequence(trial.model(), members)
    size = (cfg.rows_measured, whole.cfg.context, whole.cfg.width)
    x = torch.ones(size, dtype=whole.cfg.dtype, device=group.device)
    rows = {
        "tensor parallel": traffic(whole.blocks[0], x),
        "and sequence parallel": traffic(parts.blocks[0], tp.part_of(x, 1)),
    }
    expected = 8 * (group.world_size - 1) / group.world_size * x.nbytes  # four all-reduces
    for name, log in rows.items():
        calls = " + ".join(f"{count} {kind}" for kind, count in sorted(log.counts().items()))
        print_on_rank_0(f"{name}: {calls}, {log.by_rule():,.0f} bytes by rule")
        if log.by_rule() != expected:
            raise CourseError(f"{name}: {log.by_rule():,.0f} bytes by rule, expected {expected:,.0f}")


def peak(model: GPT, loss_of: Callable) -> dict[str, int]:
    """{kind: bytes} at the peak of a forward and backward."""
    with PeakByKind(model) as memory:
        loss_of(model, 0).backward()
    return memory.at_peak


def compare_peaks(large: Trial) -> None:
    """Activations of a batch so large that they are most of the memory."""
    members = dist.group.WORLD
    of_split = tp.loss_split(members, large)
    rows = {
        "one process": peak(large.model(), large.loss_alone),
        "tensor parallel": peak(tp.split_gpt(large.model(), members), of_split),
        "and sequence parallel": peak(split_sequence(large.model(), members), of_split),
    }
    one, whole, parts = (row[OTHER] for row in rows.values())
    for name, row in rows.items():
        print_on_rank_0(
            f"{name}: {row[OTHER] / one:.1%} of the activations, {row[PARAMETERS]:,} bytes of parameters"
        )
    if not parts < whole < one:
        raise CourseError(f"activations at the peak: {one:,}, {whole:,}, {parts:,} bytes do not become fewer")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        sizes = tp.gpt_config(group.world_size, cfg)
        trial = Trial(sizes, group, cfg)
        compare_training(trial, cfg)
        compare_dropout(trial, cfg)
        large = Trial(sizes, group, replace(cfg, rows=cfg.rows_measured))
        compare_traffic(trial, cfg)
        compare_peaks(large)


if __name__ == "__main__":
    run(main, Config())
