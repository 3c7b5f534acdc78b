"""A whole GPT over all ranks: heads, MLP, vocabulary and loss, equal to one process after each step.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_17/proof_gpt.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, IGNORED, Block, GPTConfig
from shared.training.one_process import Step, assert_same_training
from shared.training.trial import LossOf, Trial

from lab_17_mlp import ColumnParallelLinear, CopyToRanks, RowParallelLinear, SumOverRanks, part_of

SPLIT_BY_ROWS_OF_WEIGHT = ("query", "key", "value", "up", "tokens")  # columns of the formula's matrix
SPLIT_BY_COLUMNS_OF_WEIGHT = ("out", "down")


@dataclass(frozen=True)
class Config:
    layers: int = 2
    rows: int = 3  # sequences in a batch
    steps: int = 3
    lr: float = 0.5
    tolerance: float = 1e-12


def gpt_config(ranks: int, cfg: Config, dropout: float = 0.0) -> GPTConfig:
    """Sizes that ``ranks`` divides."""
    return GPTConfig(16 * ranks, 8 * ranks, 8 * ranks, 2 * ranks, cfg.layers, dropout)


class VocabularyParallelEmbedding(nn.Module):
    """Tokens (batch, length) to (batch, length, width); this rank holds the vectors of 1/N of the tokens."""

    def __init__(self, whole: nn.Embedding, group: dist.ProcessGroup, leave: Callable) -> None:
        super().__init__()
        self.group = group
        self.leave = leave
        self.weight = nn.Parameter(part_of(whole.weight, 0, group))
        self.first = dist.get_rank(group) * len(self.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        row = tokens - self.first
        elsewhere = (row < 0) | (row >= len(self.weight))
        vectors = F.embedding(row.masked_fill(elsewhere, 0), self.weight)
        vectors = vectors.masked_fill(elsewhere.unsqueeze(-1), 0)
        return self.leave(vectors, self.group)  # one rank has the vector, the others add zeros


def vocabulary_parallel_loss_sum(
    logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """``loss_sum`` of logits (batch, length, vocabulary / N) that stay on their ranks.

    The loss of a token is log(sum of exp(logits)) - logit of its label. The highest logit, taken off first
    so that exp stays finite, is found by an all-reduce; the sum and the label's logit are sums over ranks.
    """
    highest = logits.detach().amax(-1)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    logits = logits - highest.unsqueeze(-1)
    total = SumOverRanks.apply(logits.exp().sum(-1), group)
    place = labels - dist.get_rank(group) * logits.shape[-1]
    elsewhere = (place < 0) | (place >= logits.shape[-1])
    of_label = logits.gather(-1, place.masked_fill(elsewhere, 0).unsqueeze(-1)).squeeze(-1)
    of_label = SumOverRanks.apply(of_label.masked_fill(elsewhere, 0), group)
    losses = total.log() - of_label
    return losses[labels != IGNORED].sum()


def split_gpt(
    model: GPT,
    group: dist.ProcessGroup,
    enter: Callable = CopyToRanks.apply,
    leave: Callable = SumOverRanks.apply,
) -> GPT:
    """Leave this rank its part of a whole ``model``; the names of parameters stay.

    Each rank computes with 1/N of the heads, of the MLP and of the vocabulary. ``enter`` stands before
    such a region and ``leave`` after it: f and g.
    """

    def entered(module: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (enter(inputs[0], group),)

    ranks = dist.get_world_size(group)
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        if attention.heads % ranks:
            raise CourseError(f"{attention.heads} heads cannot be divided by {ranks} ranks")
        attention.heads //= ranks
        for name in ("query", "key", "value"):  # they share one f, before the attention
            setattr(attention, name, ColumnParallelLinear(getattr(attention, name), group, enter=None))
        attention.out = RowParallelLinear(attention.out, group, leave)
        attention.register_forward_pre_hook(entered)
        mlp.up = ColumnParallelLinear(mlp.up, group, enter)
        mlp.down = RowParallelLinear(mlp.down, group, leave)
    model.tokens = VocabularyParallelEmbedding(model.tokens, group, leave)
    model.head = ColumnParallelLinear(model.head, group, enter)
    model.head.weight = model.tokens.weight  # tied, as before
    return model


def part_in(group: dist.ProcessGroup) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """What this rank holds of the whole tensor of that name."""

    def part(name: str, whole: torch.Tensor) -> torch.Tensor:
        *_, layer, kind = name.split(".")
        if layer in SPLIT_BY_ROWS_OF_WEIGHT:
            return part_of(whole, 0, group)
        if layer in SPLIT_BY_COLUMNS_OF_WEIGHT and kind == "weight":
            return part_of(whole, 1, group)
        return whole  # norms, positions, and the biases that are added to a sum

    return part


def loss_split(group: dist.ProcessGroup, trial: Trial) -> LossOf:
    """The loss of the whole batch. All ranks read it, because all of them work on one and the same model."""

    def loss_of(model: GPT, step: int) -> torch.Tensor:
        tokens, labels = trial.batch(step)
        logits = model(tokens)
        assert logits.shape[-1] * dist.get_world_size(group) == model.cfg.vocabulary, "logits were gathered"
        return vocabulary_parallel_loss_sum(logits, labels, group) / labels.numel()

    return loss_of


def calls_of_block(block: Block, x: torch.Tensor) -> dict[str, dict[str, int]]:
    """{pass: {kind of collective: calls, "bytes": what this rank hands in}} of one block."""
    x = x.clone().requires_grad_()
    with record() as forward:
        y = block(x)
    with record() as backward:
        y.square().mean().backward()
    return {
        name: dict(log.counts()) | {"bytes": log.bytes()}
        for name, log in (("forward", forward), ("backward", backward))
    }


def check_block(model: GPT, group: Group, cfg: Config) -> dict:
    """A block all-reduces the activations twice in each direction, and nothing else."""
    size = (cfg.rows, model.cfg.context, model.cfg.width)
    x = torch.ones(size, dtype=model.cfg.dtype, device=group.device)
    calls = calls_of_block(model.blocks[0], x)
    expected = {"all_reduce": 2, "bytes": 2 * x.nbytes}
    if calls != {"forward": expected, "backward": expected}:
        raise CourseError(f"a block calls {calls}, expected is {expected} in each direction")
    return calls


def check_step(model: GPT, loss_of: Callable, cfg: Config) -> dict[str, int]:
    """All all-reduces of a step: embedding, blocks, three in the loss; backward blocks, and the head's f."""
    with record() as log:
        loss = loss_of(model, 0)
        forward = log.count()
        loss.backward()
    activations = cfg.rows * model.cfg.context * model.cfg.width * 8
    largest = max(call.bytes for call in log.calls)
    counted = {"forward": forward, "backward": log.count() - forward, "largest": largest}
    expected = {"forward": 1 + 2 * cfg.layers + 3, "backward": 2 * cfg.layers + 1, "largest": activations}
    if counted != expected or set(log.counts()) != {"all_reduce"}:
        raise CourseError(f"a step calls {counted}, expected {expected}")
    return counted


def compare(ranks: int, trial: Trial, alone: list[Step], cfg: Config) -> dict:
    """Train the GPT on groups of ``ranks``, each of which holds all of it, and hold it against ``alone``."""
    group = trial.group
    mesh = init_device_mesh(group.device.type, (group.world_size // ranks, ranks))
    members = mesh.get_group(1)
    model = trial.model()
    whole = sum(p.numel() for p in model.parameters())
    split_gpt(model, members)
    calls = check_block(model, group, cfg)
    model.zero_grad()
    loss_of = loss_split(members, trial)
    step = check_step(model, loss_of, cfg)
    ours = trial.train(model, loss_of)
    assert_same_training(f"GPT over {ranks} ranks", ours, alone, cfg.tolerance, part_in(members))
    held = sum(p.numel() for p in model.parameters())
    return {"block": calls, "step": step, "held": held, "whole": whole}


def tell(ranks: int, result: dict, cfg: Config) -> None:
    print_on_rank_0(f"GPT over {ranks} ranks: equal to one process after each of {cfg.steps} steps")
    print_on_rank_0(f"  a rank holds {result['held']:,} of {result['whole']:,} parameters")
    for name, calls in result["block"].items():
        print_on_rank_0(f"  a block, {name}: {calls['all_reduce']} all-reduces, {calls['bytes']:,} bytes")
    step = result["step"]
    print_on_rank_0(f"  a step: {step['forward']} all-reduces forward, {step['backward']} backward")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        trial = Trial(gpt_config(group.world_size, cfg), group, cfg)
        alone = trial.alone()
        for ranks in range(2, group.world_size + 1):
            if group.world_size % ranks == 0:
                tell(ranks, compare(ranks, trial, alone, cfg), cfg)


if __name__ == "__main__":
    run(main, Config())
