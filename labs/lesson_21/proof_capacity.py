"""A fixed capacity for each expert: even all-to-alls without counts, padding, and tokens that are dropped.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_21/proof_capacity.py
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal

from lab_21_moe import ExpertParallelMoE, MoE, Router


@dataclass(frozen=True)
class Config:
    width: int = 16
    hidden: int = 32
    experts: int = 4  # on each rank
    k: int = 2
    tokens: int = 128  # on each rank
    factors: tuple[float, ...] = (1.0, 1.25, 1.5, 2.0)
    tolerance: float = 1e-12


def capacity_of(factor: float, tokens: int, k: int, experts: int) -> int:
    """Rows that one expert takes from one rank: ``factor`` times its share, if all got the same."""
    return math.ceil(factor * tokens * k / experts)


def places_in_queue(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """Which place each choice (tokens, k) takes in the queue of its expert: all first choices come first."""
    queue = chosen.T.flatten()
    so_far = F.one_hot(queue, experts).cumsum(0)
    place = so_far.gather(1, queue.unsqueeze(1)).squeeze(1) - 1
    return place.view(chosen.T.shape).T


class WithCapacity(nn.Module):
    """A router in one process: a choice that finds no room counts 0. The tokens are those of one rank."""

    def __init__(self, router: Router, factor: float) -> None:
        super().__init__()
        self.router = router
        self.factor = factor
        self.dropped = 0

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = self.router(tokens)
        experts = len(self.router.weight)
        capacity = capacity_of(self.factor, *chosen.shape, experts)
        fits = places_in_queue(chosen, experts) < capacity
        self.dropped = int((~fits).sum())
        return weights * fits, chosen


class PaddedMoE(ExpertParallelMoE):
    """Each rank sends each expert a buffer of ``capacity`` rows, full or not. GShard, 2020, arXiv 2006.16668.

    All shapes are known beforehand: no counts, no uneven exchange, no loop over experts, and the host never
    waits for a number of the device.
    """

    def __init__(self, whole: MoE, factor: float, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(whole, group)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = self.router(tokens)
        capacity = capacity_of(self.factor, *chosen.shape, self.expert_count)
        place = places_in_queue(chosen, self.expert_count)
        nowhere = self.expert_count * capacity  # one row too many, which takes what finds no room
        box = torch.where(place < capacity, chosen * capacity + place, nowhere).flatten()
        token = torch.arange(len(tokens), device=x.device).repeat_interleave(self.router.k)
        boxes = tokens.new_zeros(nowhere + 1, tokens.shape[-1]).index_copy(0, box, tokens[token])
        returned = self.swap(self.apply_experts(self.swap(boxes[:-1]), capacity))
        returned = F.pad(returned, (0, 0, 0, 1))  # and which gives back 0
        rows = returned[box].unflatten(0, chosen.shape)
        return (rows * weights.unsqueeze(-1)).sum(1).view_as(x)

    def swap(self, boxes: torch.Tensor) -> torch.Tensor:
        """An even exchange of (experts * capacity, width)."""
        ranks = dist.get_world_size(self.group)
        even = [len(boxes) // ranks] * ranks
        return self.exchange_rows(boxes, even, even, self.group)

    def apply_experts(self, boxes: torch.Tensor, capacity: int) -> torch.Tensor:
        """Buffers of all ranks for our experts, rank by rank. Two batched products for all experts."""
        here, width = len(self.experts.up), boxes.shape[-1]
        by_rank = (-1, here, capacity, width)
        rows = boxes.view(by_rank).transpose(0, 1).reshape(here, -1, width)
        results = torch.bmm(F.gelu(torch.bmm(rows, self.experts.up)), self.experts.down)
        return results.view(here, -1, capacity, width).transpose(0, 1).reshape(boxes.shape)


def rows_without_room(chosen: torch.Tensor, factor: float, experts: int) -> int:
    """What is more than the capacity in each expert's load."""
    load = chosen.flatten().bincount(minlength=experts)
    return int((load - capacity_of(factor, *chosen.shape, experts)).clamp(min=0).sum())


def gradients_of(module: nn.Module, loss: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """{name: gradient}; that of ``x`` is called tokens."""
    names = [name for name, _ in module.named_parameters()]
    gradients = torch.autograd.grad(loss, [*module.parameters(), x])
    return dict(zip([*names, "tokens"], gradients, strict=True))


def check_parity(whole: MoE, x: torch.Tensor, factor: float, group: Group, cfg: Config) -> dict[str, int]:
    """Equal to one process that treats each rank's tokens by themselves, but not all tokens at once.

    Returns:
        {"ranks": rows dropped by all ranks, "at once": rows dropped by one process with all tokens}
    """
    ranks, rank = group.world_size, group.rank
    every_x = torch.empty(ranks * len(x), x.shape[-1], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(every_x, x)

    layer = PaddedMoE(whole, factor)
    x_here = x.clone().requires_grad_()
    y = layer(x_here)
    ours = gradients_of(layer, y.square().sum(), x_here)
    dist.all_reduce(ours["router.weight"])

    inner = whole.router
    whole.router = WithCapacity(inner, factor)
    every_x.requires_grad_()
    pieces = []
    dropped = 0
    excess = 0
    for piece in every_x.chunk(ranks):
        pieces.append(whole(piece))
        dropped += whole.router.dropped
        excess += rows_without_room(inner(piece)[1], factor, len(inner.weight))
    alone = gradients_of(whole, torch.cat(pieces).square().sum(), every_x)
    at_once = whole(every_x).detach()
    result = {"ranks": dropped, "at once": whole.router.dropped}
    whole.router = inner

    where = f"capacity factor {factor}"
    if dropped != excess:
        raise CourseError(f"{where}: {dropped} rows dropped, expected {excess}")
    assert_equal(f"{where}: output", y, pieces[rank], cfg.tolerance)
    expected = {
        "router.weight": alone["router.router.weight"],
        "experts.up": alone["experts.up"].chunk(ranks)[rank],
        "experts.down": alone["experts.down"].chunk(ranks)[rank],
        "tokens": alone["tokens"].chunk(ranks)[rank],
    }
    for name, gradient in ours.items():
        assert_equal(f"{where}: gradient of {name}", gradient, expected[name], 100 * cfg.tolerance)
    if dropped and torch.allclose(at_once, torch.cat(pieces)):
        raise CourseError(f"{where}: one process that takes all tokens at once should drop others")
    return result


def traffic(layer: ExpertParallelMoE, x: torch.Tensor) -> dict[str, float]:
    """Calls of a forward and backward, and bytes by rule, on average of the ranks."""
    x = x.clone().requires_grad_()
    with record() as log:
        layer(x).square().sum().backward()
    sent = torch.tensor(log.by_rule(), dtype=torch.float64, device=x.device)
    dist.all_reduce(sent)
    return {"calls": log.count(), "bytes": sent.item() / dist.get_world_size()}


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        experts = cfg.experts * group.world_size
        whole = MoE(cfg.width, cfg.hidden, experts, cfg.k, torch.float64).to(group.device)
        broadcast_from_rank_0(whole.parameters())
        x = torch.randn(cfg.tokens, cfg.width, dtype=torch.float64, device=group.device) + 0.5
        uneven = ExpertParallelMoE(whole)
        no_drops = experts / cfg.k  # room for all of a rank's tokens in each expert
        assert_equal("room for all", PaddedMoE(whole, no_drops)(x), uneven(x), cfg.tolerance)
        without = traffic(uneven, x)
        rows = cfg.tokens * cfg.k * group.world_size
        for factor in cfg.factors:
            dropped = check_parity(whole, x, factor, group, cfg)
            measured = traffic(PaddedMoE(whole, factor), x)
            boxes = experts * capacity_of(factor, cfg.tokens, cfg.k, experts) * cfg.width * 8
            expected = 4 * boxes * (group.world_size - 1) / group.world_size
            if measured != {"calls": 4, "bytes": expected}:
                raise CourseError(
                    f"capacity factor {factor}: {measured}, expected 4 calls, {expected:,.0f} bytes"
                )
            print_on_rank_0(
                f"capacity factor {factor}: {dropped['ranks']} of {rows} rows dropped, "
                f"{dropped['at once']} by one process at once; {measured['bytes']:,.0f} bytes in 4 calls"
            )
        print_on_rank_0(f"uneven: nothing dropped; {without['bytes']:,.0f} bytes in {without['calls']} calls")


if __name__ == "__main__":
    run(main, Config())
