"""What is made of what: identities between collectives, and objects from single messages.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_04_identities.py
Written by:  notebooks/04_collectives.ipynb
"""

import pickle
from collections.abc import Callable

import torch
import torch.distributed as dist

from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

# One tensor instead of a list of pieces. Before torch 2.13 these two had other names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Collectives:
    """torch's collectives over one group, each as a function from a tensor to a new tensor."""

    def __init__(self, pg: dist.ProcessGroup) -> None:
        self.pg, self.n, self.root = pg, dist.get_world_size(pg), dist.get_rank(pg) == 0

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        dist.broadcast(y := x.clone(), group_src=0, group=self.pg)
        return y

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        pieces = [piece.clone() for piece in x.chunk(self.n)]
        dist.scatter(y := pieces[0].clone(), pieces if self.root else None, group_src=0, group=self.pg)
        return y

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Only the root's result means something."""
        pieces = [torch.empty_like(x) for _ in range(self.n)]
        dist.gather(x, pieces if self.root else None, group_dst=0, group=self.pg)
        return torch.cat(pieces)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        all_gather_single(y := x.repeat(self.n), x, group=self.pg)
        return y

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Only the root's result means something."""
        dist.reduce(y := x.clone(), group_dst=0, group=self.pg)
        return y

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := x.clone(), group=self.pg)
        return y

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        reduce_scatter_single(y := x.chunk(self.n)[0].clone(), x, group=self.pg)
        return y

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_to_all_single(y := torch.empty_like(x), x, group=self.pg)
        return y

    def sum_here(self, x: torch.Tensor) -> torch.Tensor:
        """Add up the n pieces of x. No communication."""
        return x.view(self.n, -1).sum(0)


IDENTITIES = (
    ("all_reduce", "reduce, broadcast", lambda c, x: c.broadcast(c.reduce(x))),
    ("all_reduce", "reduce_scatter, all_gather", lambda c, x: c.all_gather(c.reduce_scatter(x))),
    ("all_reduce", "all_gather, sum here", lambda c, x: c.sum_here(c.all_gather(x))),
    ("all_gather", "gather, broadcast", lambda c, x: c.broadcast(c.gather(x))),
    ("broadcast", "scatter, all_gather", lambda c, x: c.all_gather(c.scatter(x))),
    ("reduce_scatter", "reduce, scatter", lambda c, x: c.scatter(c.reduce(x))),
    ("reduce_scatter", "all_to_all, sum here", lambda c, x: c.sum_here(c.all_to_all(x))),
    ("nothing", "all_to_all, all_to_all", lambda c, x: c.all_to_all(c.all_to_all(x))),
)
NO_IDENTITY = ("nothing", "all_to_all", lambda c, x: c.all_to_all(x))


def holds(left: str, right: Callable, pg: dist.ProcessGroup, group: Group) -> bool:
    """Whether both sides leave the same on this rank."""
    c, x = Collectives(pg), torch.randint(1000, (840,), device=group.device)  # whole numbers: sums are exact
    return torch.equal(x if left == "nothing" else getattr(c, left)(x), right(c, x))


def send_object(thing: object, to: int, group: Group) -> None:
    """Two messages: the size, then the bytes. The receiver cannot know the size beforehand."""
    data = torch.frombuffer(bytearray(pickle.dumps(thing)), dtype=torch.uint8).to(group.device)
    dist.send(torch.tensor([len(data)], device=group.device), to)
    dist.send(data, to)


def receive_object(source: int, group: Group) -> object:
    """Unpickling can run any code: receive only from ranks that you trust."""
    size = torch.empty(1, dtype=torch.int64, device=group.device)
    dist.recv(size, source)
    data = torch.empty(int(size), dtype=torch.uint8, device=group.device)
    dist.recv(data, source)
    return pickle.loads(bytes(data.tolist()))


def scatter_objects(things: list, group: Group) -> object:
    """Rank 0's object for me. With the same object n times it is a broadcast."""
    if group.rank > 0:
        return receive_object(0, group)
    for other in range(1, group.world_size):
        send_object(things[other], other, group)
    return things[0]


def gather_objects(thing: object, group: Group) -> list | None:
    """The objects of all, on rank 0."""
    if group.rank > 0:
        return send_object(thing, 0, group)  # returns None
    return [thing] + [receive_object(other, group) for other in range(1, group.world_size)]


def objects(group: Group) -> None:
    """Objects by hand equal those of torch."""
    n, rank = group.world_size, group.rank
    mine, all_of_mine = {"rank": rank, "seen": list(range(rank))}, [{"for": r} for r in range(n)]
    theirs, scattered = [None] * n, [None]
    dist.all_gather_object(theirs, mine)
    dist.scatter_object_list(scattered, all_of_mine if rank == 0 else None, src=0)
    gathered = gather_objects(mine, group)
    everywhere = scatter_objects([gathered] * n, group)  # gather, then broadcast
    assert theirs == everywhere, (theirs, everywhere)
    assert (gathered is None) == (rank > 0)
    assert scatter_objects(all_of_mine, group) == scattered[0]


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        everyone = list(range(group.world_size))
        for ranks in (everyone, everyone[::2], everyone[1::2]):
            pg = dist.new_group(ranks)
            if group.rank in ranks:
                for left, text, right in IDENTITIES:
                    assert holds(left, right, pg, group), f"over ranks {ranks}, {left} is not {text}"
        for left, text, _ in IDENTITIES:
            print_on_rank_0(f"{left:14} = {text}")
        assert not holds(*NO_IDENTITY[::2], dist.group.WORLD, group), "the check lets anything pass"
        objects(group)
        print_on_rank_0("objects by hand equal torch's")


if __name__ == "__main__":
    run(main)
