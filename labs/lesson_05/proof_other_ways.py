"""Four other all-reduces: through rank 0, a ring of whole tensors, and by partners at growing distances.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_05/proof_other_ways.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    numel: int = 100_000  # float32; 2, 4 and 8 divide it
    tolerance: float = 1e-5  # sums in another order round differently


def exchange(
    outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int, group: dist.ProcessGroup | None
) -> None:
    """Send to one rank of the group while receiving from another; wait for both."""
    send = dist.P2POp(dist.isend, outgoing, group=group, group_peer=to)
    receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=source)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def gather_and_broadcast(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """The first rank receives all tensors, adds them up and sends the sum to everyone."""
    if dist.get_rank(group) > 0:
        dist.send(x, group=group, group_dst=0)
        dist.recv(x, group=group, group_src=0)
        return
    incoming = torch.empty_like(x)
    others = range(1, dist.get_world_size(group))
    for other in others:
        dist.recv(incoming, group=group, group_src=other)
        x += incoming
    for other in others:
        dist.send(x, group=group, group_dst=other)


def whole_tensor_ring(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """A ring in name only: whole tensors go round n - 1 times, each rank adds what passes by.

    It is the ring of "Writing Distributed Applications with PyTorch" (dist_tuto), function ``allreduce``.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    passing = x.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        exchange(passing, (rank + 1) % n, incoming, (rank - 1) % n, group)
        x += incoming
        passing = incoming


def recursive_doubling(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Exchange whole tensors with partners 1, 2, 4, ... away: log2(n) rounds; n is a power of 2."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    distance = 1
    while distance < n:
        partner = rank ^ distance
        incoming = torch.empty_like(x)
        exchange(x, partner, incoming, partner, group)
        x += incoming
        distance *= 2


def halving_and_doubling(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Reduce-scatter with partners n / 2, n / 4, ... away, then all-gather the way back.

    The bytes of a ring in 2 log2(n) messages. ``x`` is flat, n is a power of 2 and divides its length.
    Rabenseifner's algorithm: Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    mine = x
    steps = []
    distance = n // 2
    while distance > 0:
        partner = rank ^ distance
        lower, upper = mine.chunk(2)
        mine, theirs = (upper, lower) if rank & distance else (lower, upper)
        incoming = torch.empty_like(mine)
        exchange(theirs, partner, incoming, partner, group)
        mine += incoming
        steps.append((partner, mine, theirs))
        distance //= 2
    for partner, mine, theirs in reversed(steps):
        exchange(mine, partner, theirs, partner, group)


WAYS = {
    "gather and broadcast": gather_and_broadcast,
    "whole-tensor ring": whole_tensor_ring,
    "recursive doubling": recursive_doubling,
    "halving and doubling": halving_and_doubling,
}


def works_with(way: str, n: int) -> bool:
    """Whether n ranks can do it: with partners, as it stands here, n must be a power of 2."""
    return "doubling" not in way or n & (n - 1) == 0


def same_on_all_ranks(x: torch.Tensor) -> bool:
    """Whether all ranks hold the same bits. Collective."""
    of_rank_0 = x.clone()
    dist.broadcast(of_rank_0, src=0)
    same = torch.tensor([torch.equal(x, of_rank_0)], dtype=torch.int32, device=x.device)
    dist.all_reduce(same, op=dist.ReduceOp.MIN)
    return bool(same.item())


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        n = group.world_size
        for way, all_reduce in WAYS.items():
            if not works_with(way, n):
                continue
            numbers = torch.Generator().manual_seed(group.rank)
            x = torch.randn(cfg.numel, generator=numbers).to(group.device)
            expected = x.clone()
            dist.all_reduce(expected)
            all_reduce(x)
            assert_equal(way, x, expected, cfg.tolerance)
            same = same_on_all_ranks(x)
            if same != (way != "whole-tensor ring" or n == 2):
                raise CourseError(f"{way}: {'the same' if same else 'different'} bits on the ranks")
            bits = "the same bits on all ranks" if same else "the ranks differ in the last bits"
            print_on_rank_0(f"{way}, {n} ranks: the sum is right, {bits}")


if __name__ == "__main__":
    run(main, Config())
