"""What is made of what: identities between collectives, and objects from single messages.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_04_identities.py
Written by:  notebooks/04_collectives.ipynb
"""

import pickle

import lab_04_collectives as torchs
import torch
import torch.distributed as dist

from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run


class Collectives:
    """Those of lab_04_collectives over one group, each as a function from a tensor to a new tensor.

    Where torch promises nothing, the result is NaN: whoever uses it gets NaN as well.
    """

    def __init__(self, pg: dist.ProcessGroup) -> None:
        self.pg = pg
        self.n = dist.get_world_size(pg)

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        return torchs.broadcast(x.clone(), self.pg)

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        return torchs.scatter(x, self.pg)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        whole = torchs.gather(x, self.pg)
        if whole is None:
            return torch.full_like(x.repeat(self.n), torch.nan)
        return whole

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torchs.all_gather(x, self.pg)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        total = torchs.reduce(x.clone(), self.pg)
        if total is None:
            return torch.full_like(x, torch.nan)
        return total

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torchs.all_reduce(x.clone(), self.pg)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        return torchs.reduce_scatter(x, self.pg)

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        return torchs.all_to_all(x, self.pg)

    def sum_here(self, x: torch.Tensor) -> torch.Tensor:
        """Add up the n pieces of x. No communication."""
        return x.view(self.n, -1).sum(0)

    def nothing(self, x: torch.Tensor) -> torch.Tensor:
        return x


IDENTITIES = (
    ("all_reduce", ("reduce", "broadcast")),
    ("all_reduce", ("reduce_scatter", "all_gather")),
    ("all_reduce", ("all_gather", "sum_here")),
    ("all_gather", ("gather", "broadcast")),
    ("broadcast", ("scatter", "all_gather")),
    ("reduce_scatter", ("reduce", "scatter")),
    ("reduce_scatter", ("all_to_all", "sum_here")),
    ("nothing", ("all_to_all", "all_to_all")),
)


def holds(left: str, right: tuple[str, ...], pg: dist.ProcessGroup, group: Group) -> bool:
    """Whether ``left``, and the collectives of ``right`` one after another, leave the same on this rank."""
    collectives = Collectives(pg)
    x = torch.randint(1000, (840,), device=group.device).double()  # whole numbers: sums are exact
    expected = getattr(collectives, left)(x)
    for name in right:
        x = getattr(collectives, name)(x)
    return torch.equal(x, expected)


def lists(group: Group) -> None:
    """The variants that take a list of pieces, and the older names of the single-tensor forms, agree."""
    n = group.world_size
    x = torch.randint(1000, (840,), device=group.device)
    gathered, piece = torchs.all_gather(x), torchs.reduce_scatter(x)

    pieces = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(pieces, x)
    assert torch.equal(torch.cat(pieces), gathered), "all_gather is not all_gather_single"
    output = torch.empty_like(piece)
    dist.reduce_scatter(output, list(x.split(len(piece))))
    assert torch.equal(output, piece), "reduce_scatter is not reduce_scatter_single"

    dist.all_gather_into_tensor(gathered.zero_(), x)
    assert torch.equal(torch.cat(pieces), gathered), "all_gather_into_tensor is not all_gather_single"
    dist.reduce_scatter_tensor(piece.zero_(), x)
    assert torch.equal(output, piece), "reduce_scatter_tensor is not reduce_scatter_single"


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


def scatter_objects(things: list | None, group: Group) -> object:
    """Rank 0's object for me. With the same object n times it is a broadcast."""
    if group.rank > 0:
        return receive_object(0, group)
    for other in range(1, group.world_size):
        send_object(things[other], other, group)
    return things[0]


def gather_objects(thing: object, group: Group) -> list | None:
    """The objects of all, on rank 0; None elsewhere."""
    if group.rank > 0:
        send_object(thing, 0, group)
        return None
    return [thing] + [receive_object(other, group) for other in range(1, group.world_size)]


def objects(group: Group) -> None:
    """Objects by hand equal those of torch."""
    n, rank = group.world_size, group.rank
    mine = {"rank": rank, "seen": list(range(rank))}  # their pickles differ in length
    gathered = gather_objects(mine, group)
    everywhere = scatter_objects([gathered] * n, group)  # gather, then broadcast
    by_torch = [None] * n
    dist.all_gather_object(by_torch, mine)
    assert everywhere == by_torch, f"gathered by hand {everywhere}, by torch {by_torch}"

    one_for_each = [{"for": r} for r in range(n)]
    scattered = scatter_objects(one_for_each, group)
    by_torch = [None]
    dist.scatter_object_list(by_torch, one_for_each if rank == 0 else None, src=0)
    assert scattered == by_torch[0], f"scattered by hand {scattered}, by torch {by_torch[0]}"


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        everyone = list(range(group.world_size))
        for ranks in (everyone, everyone[::2], everyone[1::2]):
            pg = dist.new_group(ranks)
            if group.rank in ranks:
                for left, right in IDENTITIES:
                    assert holds(left, right, pg, group), f"over ranks {ranks}, {left} is not {right}"
        for left, right in IDENTITIES:
            print_on_rank_0(f"{left:14} = {', '.join(right)}")
        one_alone = holds("nothing", ("all_to_all",), dist.group.WORLD, group)
        assert not one_alone, "one all_to_all changes nothing: the comparison lets anything pass"
        lists(group)
        print_on_rank_0("the variants with lists and the older names equal the single-tensor forms")
        objects(group)
        print_on_rank_0("objects by hand equal torch's")


if __name__ == "__main__":
    run(main)
