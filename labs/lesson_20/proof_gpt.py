"""A GPT whose sequence is divided over all ranks trains as in one process: three ways, after each step.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_20/proof_gpt.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.flat import sum_over_ranks
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.gpt import GPT, IGNORED, GPTConfig, loss_sum
from shared.training.one_process import assert_same_training
from shared.training.storages import OTHER, PeakByKind
from shared.training.trial import LossOf, Trial

from lab_20_ring import chunks_of, part_of
from lesson_20.proof_ways import WAYS, BlockAttention, GatherSequence, expected_calls


@dataclass(frozen=True)
class Config:
    layers: int = 2
    rows: int = 3  # sequences in a batch
    chunk: int = 4  # positions; the sequence has 2N chunks
    steps: int = 3
    lr: float = 0.5
    tolerance: float = 1e-12
    chunk_measured: int = 16  # so that activations are most of the memory
    slack: float = 0.6  # of 1/N: what a rank may hold more of the activations


def gpt_config(ranks: int, cfg: Config) -> GPTConfig:
    """Sizes for any way: N divides the heads, and 2N the sequence."""
    return GPTConfig(16 * ranks, 2 * ranks * cfg.chunk, 8 * ranks, 2 * ranks, cfg.layers)


class ContextTrial(Trial):
    """Whole sequences. The first third of the labels is ignored, so ranks have different numbers of labels.

    So it is in fine-tuning, where the question is not to be learned.
    """

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, labels = super().batch(step)
        labels[:, : self.sizes.context // 3] = IGNORED
        return tokens, labels

    def packed_batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A document's last token has no label: the next one is not its own."""
        tokens, labels = self.batch(step)
        labels[:, :-1][:, self.documents[:-1] != self.documents[1:]] = IGNORED
        return tokens, labels

    @property
    def documents(self) -> torch.Tensor:
        """(length,): of three documents of unequal length, none of which ends where a chunk does."""
        length = self.sizes.context
        ends = torch.tensor([length // 3 + 1, length // 2 + 1], device=self.group.device)
        return torch.searchsorted(ends, torch.arange(length, device=ends.device), right=True)

    def loss_of_documents(self, model: GPT, step: int) -> torch.Tensor:
        """In one process, each document by itself."""
        tokens, labels = self.packed_batch(step)
        total = torch.zeros((), dtype=self.sizes.dtype, device=tokens.device)
        for number in self.documents.unique():
            own = self.documents == number
            total = total + loss_sum(model(tokens[:, own]), labels[:, own])
        return total / (labels != IGNORED).sum()


def packed_attention(documents: torch.Tensor, group: dist.ProcessGroup) -> Callable:
    """Attention within documents, by gathered keys over a zigzag: any mask works."""
    ranks = dist.get_world_size(group)
    positions = torch.arange(len(documents), device=documents.device)
    own = part_of(positions, 0, group)
    chunks = positions.chunk(2 * ranks)
    of_keys = torch.cat([chunks[number] for rank in range(ranks) for number in chunks_of(rank, ranks)])
    seen = (own.unsqueeze(-1) >= of_keys) & (documents[own].unsqueeze(-1) == documents[of_keys])

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = GatherSequence.apply(torch.stack([k, v]), group)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)

    return attend


def split_context(
    model: GPT, way: str, group: dist.ProcessGroup, documents: torch.Tensor | None = None
) -> GPT:
    """Have ``model`` work on this rank's part of each sequence. All its parameters stay whole.

    Norms, MLPs and the head look at one position at a time, so they need no change. Attention does, and so
    do the positions: this rank's first token is not the first of the sequence. ``documents``: (length,), the
    number of the document at each position, if several are packed into one; positions count anew in each,
    and ``way`` is gather.
    """
    zigzag = WAYS[way].zigzag

    def own_positions(module: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        length = len(inputs[0]) * dist.get_world_size(group)
        positions = torch.arange(length, device=inputs[0].device)
        if documents is not None:
            positions = positions - torch.searchsorted(documents, documents)  # minus the document's first
        return (part_of(positions, 0, group, zigzag),)

    model.positions.register_forward_pre_hook(own_positions)
    attend = partial(WAYS[way].attend, group=group)
    for block in model.blocks:
        block.attention.attend = attend if documents is None else packed_attention(documents, group)
    return model


def part_of_batch(
    tokens: torch.Tensor, labels: torch.Tensor, way: str, group: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's parts of (rows, length), cut alike. The labels are the next tokens *before* the cut."""
    zigzag = WAYS[way].zigzag
    return part_of(tokens, 1, group, zigzag), part_of(labels, 1, group, zigzag)


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def loss_of_part(way: str, group: dist.ProcessGroup, batch_of: Callable) -> LossOf:
    """What this rank's labels add to the loss: divided by the labels of all ranks.

    Args:
        batch_of: step to tokens and labels of whole sequences.
    """

    def loss_of(model: GPT, step: int) -> torch.Tensor:
        tokens, labels = batch_of(step)
        count = (labels != IGNORED).sum()
        tokens, labels = part_of_batch(tokens, labels, way, group)
        return loss_sum(model(tokens), labels) / count

    return loss_of


def reduce(model: nn.Module, loss: torch.Tensor) -> None:
    """Each rank's loss and gradients come from its part of the tokens. The sums are those of all tokens."""
    sum_over_ranks(gradients_of(model))
    dist.all_reduce(loss)


def check_calls(way: str, model: GPT, loss_of: LossOf, group: Group, cfg: Config) -> None:
    """A step sends what attention sends in each layer, and the gradients."""
    n = group.world_size
    part = cfg.rows * model.cfg.context // n * model.cfg.width * 8
    with record() as log:
        loss_of(model, 0).backward()
    attention = round(log.by_rule())
    per_layer = expected_calls(way, n, part)
    expected = cfg.layers * sum(traffic["bytes"] for traffic in per_layer.values())
    if attention != expected:
        raise CourseError(f"{way}: a rank sends {attention:,} bytes, expected {expected:,}")
    with record() as log:
        sum_over_ranks(gradients_of(model))
    whole = sum(p.nbytes for p in model.parameters())
    if dict(log.counts()) != {"all_reduce": 1} or log.bytes() != whole:
        raise CourseError(f"{way}: gradients of {log.bytes():,} bytes are summed, expected {whole:,}")
    model.zero_grad()


def by_blocks(chunks: int) -> Callable:
    """Attention on one process that holds as few scores at one time as the ranks do."""
    numbers = list(range(chunks))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return BlockAttention.apply(q, torch.stack([k, v]), numbers, numbers)

    return attend


def peak_of_activations(model: GPT, loss_of: Callable) -> int:
    """Bytes of activations and buffers when most storages are alive."""
    with PeakByKind(model) as memory:
        loss_of(model, 0).backward()
    return memory.at_peak[OTHER]


def compare_peaks(group: Group, cfg: Config) -> None:
    """Bytes of activations at the peak, beside those of one process."""
    n, world = group.world_size, dist.group.WORLD
    longer = Config(chunk=cfg.chunk_measured, rows=1)
    sizes = gpt_config(n, longer)
    trial = ContextTrial(sizes, group, longer)
    alone = trial.model()
    for block in alone.blocks:
        block.attention.attend = by_blocks(2 * n)
    whole = peak_of_activations(alone, trial.loss_alone)
    for way in ("ring", "gather", "Ulysses"):
        model = split_context(trial.model(), way, world)
        share = peak_of_activations(model, loss_of_part(way, world, trial.batch)) / whole
        print_on_rank_0(f"{way}: {share:.2f} of the activations that one process holds at its peak")
        if share > (1 + cfg.slack) / n:
            raise CourseError(f"{way}: {share:.2f} of the activations, expected about 1/{n}")


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions: pairs of the numbers in (..., length, width) are turned by angles."""
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angles = positions.unsqueeze(-1) * speeds
    first, second = x.chunk(2, dim=-1)
    turned = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
    return torch.cat(turned, dim=-1)


def with_rotary(attend: Callable, positions: torch.Tensor) -> Callable:
    """``attend`` with queries and keys that their own rank has turned, by their places in the sequence."""

    def attend_turned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(rotate(q, positions), rotate(k, positions), v)

    return attend_turned


def compare_rotary(trial: ContextTrial, cfg: Config) -> None:
    """Rotary positions on top of the table, beside one process, in each of the three ways."""
    world = dist.group.WORLD
    everything = torch.arange(trial.sizes.context, device=trial.group.device)
    model = trial.model()
    for block in model.blocks:
        block.attention.attend = with_rotary(block.attention.attend, everything)
    alone = trial.train(model, trial.loss_alone)
    for way in ("ring", "gather", "Ulysses"):
        model = split_context(trial.model(), way, world)
        own = part_of(everything, 0, zigzag=WAYS[way].zigzag)
        for block in model.blocks:
            block.attention.attend = with_rotary(block.attention.attend, own)
        ours = trial.train(model, loss_of_part(way, world, trial.batch), reduce)
        assert_same_training(f"{way}, rotary positions", ours, alone, cfg.tolerance)
    print_on_rank_0("rotary positions: ring, gather and Ulysses equal to one process")


def compare_packed(trial: ContextTrial, cfg: Config) -> None:
    """Packed documents, beside the same documents one by one in one process."""
    world = dist.group.WORLD
    alone = trial.train(trial.model(), trial.loss_of_documents)
    packed = split_context(trial.model(), "gather", world, trial.documents)
    ours = trial.train(packed, loss_of_part("gather", world, trial.packed_batch), reduce)
    assert_same_training("packed documents", ours, alone, cfg.tolerance)
    print_on_rank_0("gather, 3 documents in each sequence: as each document by itself in one process")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        trial = ContextTrial(gpt_config(group.world_size, cfg), group, cfg)
        alone = trial.alone()
        for way in WAYS:
            model = split_context(trial.model(), way, dist.group.WORLD)
            loss_of = loss_of_part(way, dist.group.WORLD, trial.batch)
            check_calls(way, model, loss_of, group, cfg)
            ours = trial.train(model, loss_of, reduce)
            assert_same_training(way, ours, alone, cfg.tolerance)
            print_on_rank_0(f"{way}: equal to one process after each of {cfg.steps} steps")
        compare_rotary(trial, cfg)
        compare_packed(trial, cfg)
        tokens, labels = part_of_batch(*trial.batch(0), "ring", dist.group.WORLD)
        counted = (labels != IGNORED).sum().item()
        print_in_rank_order(f"{tokens.numel()} tokens, of which {counted} have a label that counts")
        compare_peaks(group, cfg)


if __name__ == "__main__":
    run(main, Config())
