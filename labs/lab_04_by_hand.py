"""Each collective rebuilt from single messages: equal to torch's in every group, each byte counted.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_04_by_hand.py
Written by:  notebooks/04_collectives.ipynb
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from shared.comm.kernel import wire_bytes
from shared.comm.p2p import sendrecv
from shared.comm.record import record
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run

# `ranks` are a group's members by their global rank, which send and recv want. A rank's place in that list
# is its rank within the group. Place 0 is source and destination. A piece is 1 / n of a whole tensor.


def broadcast(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """Place 0's x, everywhere: a chain, in which each passes it on."""
    me = ranks.index(dist.get_rank())
    if me > 0:
        dist.recv(x, ranks[me - 1])
    if me < len(ranks) - 1:
        dist.send(x, ranks[me + 1])
    return x


def scatter(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """My piece of place 0's x."""
    pieces, me = x.chunk(len(ranks)), ranks.index(dist.get_rank())
    if me > 0:
        dist.recv(pieces[me], ranks[0])
    else:
        for place in range(1, len(ranks)):
            dist.send(pieces[place], ranks[place])
    return pieces[me]


def gather(x: torch.Tensor, ranks: list[int]) -> torch.Tensor | None:
    """The pieces x of all, at place 0."""
    if dist.get_rank() != ranks[0]:
        return dist.send(x, ranks[0])  # returns None
    whole = x.repeat(len(ranks))
    for place in range(1, len(ranks)):
        dist.recv(whole.chunk(len(ranks))[place], ranks[place])
    return whole


def all_gather(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """The pieces x of all, everywhere. The exercise does it with fewer bytes."""
    gathered = gather(x, ranks)
    return broadcast(x.repeat(len(ranks)) if gathered is None else gathered, ranks)


def all_to_all(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """Everybody's piece for me. In round d we send d places to the right and receive from d to the left."""
    n, me = len(ranks), ranks.index(dist.get_rank())
    received = x.clone()
    outgoing, incoming = x.chunk(n), received.chunk(n)
    for d in range(1, n):
        right, left = (me + d) % n, (me - d) % n
        sendrecv(outgoing[right], ranks[right], incoming[left], ranks[left])
    return received


def reduce(x: torch.Tensor, ranks: list[int]) -> torch.Tensor | None:
    """The sum, at place 0: a chain from the last place, in which each adds its own."""
    me = ranks.index(dist.get_rank())
    if me < len(ranks) - 1:
        incoming = torch.empty_like(x)
        dist.recv(incoming, ranks[me + 1])
        x = x + incoming
    return x if me == 0 else dist.send(x, ranks[me - 1])


def all_reduce(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """The sum, everywhere. Lesson 05 does it with fewer bytes."""
    total = reduce(x, ranks)
    return broadcast(torch.empty_like(x) if total is None else total, ranks)


def reduce_scatter(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """My piece of the sum: all send it to me, and I add."""
    return all_to_all(x, ranks).view(len(ranks), -1).sum(0)


BY_HAND = (broadcast, scatter, gather, all_gather, all_to_all, reduce, all_reduce, reduce_scatter)


def by_torch(name: str, x: torch.Tensor, pg: dist.ProcessGroup) -> torch.Tensor | None:
    """The same by torch. ``group_src`` is a rank within the group; ``src`` would be a global one."""
    n, root = dist.get_world_size(pg), dist.get_rank(pg) == 0
    x, piece, like_x, whole = x.clone(), x[: len(x) // n].clone(), x.clone(), x.repeat(n)
    in_pieces, all_pieces = list(x.chunk(n)), list(whole.chunk(n))
    calls = {  # each returns None, so `or` yields the tensor that it has filled
        "broadcast": lambda: dist.broadcast(x, group_src=0, group=pg) or x,
        "scatter": lambda: dist.scatter(piece, in_pieces if root else None, group_src=0, group=pg) or piece,
        "gather": lambda: dist.gather(x, all_pieces if root else None, group_dst=0, group=pg) or whole,
        "all_gather": lambda: dist.all_gather(all_pieces, x, group=pg) or whole,
        "all_to_all": lambda: dist.all_to_all_single(like_x, x, group=pg) or like_x,
        "reduce": lambda: dist.reduce(x, group_dst=0, group=pg) or x,
        "all_reduce": lambda: dist.all_reduce(x, group=pg) or x,
        "reduce_scatter": lambda: dist.reduce_scatter(piece, in_pieces, group=pg) or piece,
    }
    result = calls[name]()
    return result if root or name not in ("gather", "reduce") else None


def received(pg: dist.ProcessGroup) -> int:
    """Bytes of this rank that others have received so far; 0 where nobody counts them."""
    dist.barrier(pg)
    return (wire_bytes() or 0) if dist.get_backend(pg) == "gloo" else 0


def measure(function: Callable, ranks: list[int], pg: dist.ProcessGroup, x: torch.Tensor) -> dict:
    """Run a collective by hand and by torch, compare, and return what this rank sent in each."""
    name = function.__name__
    x = x[: len(x) // len(ranks)] if "gather" in name else x
    with record() as log:
        ours = function(x.clone(), ranks)
    before = received(pg)
    theirs = by_torch(name, x, pg)
    assert (ours is theirs is None) or torch.equal(ours, theirs), f"{name} over ranks {ranks} differs"
    return {"messages": log.count("send"), "bytes": log.bytes("send"), "wire": received(pg) - before}


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        # Whole numbers, so that sums are exact; 210,000 of them divide by every number of ranks up to 8.
        x = torch.randint(1000, (210_000,), device=group.device).double()
        everyone, rows = list(range(group.world_size)), {}
        groups = [everyone[:n] for n in everyone] + [everyone, everyone[::2], everyone[1::2]]
        for ranks in filter(lambda ranks: len(ranks) > 1, groups):
            pg = dist.new_group(ranks)  # called by all, also by those who stay outside
            if group.rank in ranks:
                rows[str(ranks)] = {call.__name__: measure(call, ranks, pg, x) for call in BY_HAND}
            dist.barrier()
            print_on_rank_0(f"ranks {ranks}: {len(BY_HAND)} collectives by hand equal torch's")
        record_results("lab_04_by_hand", {"whole": x.numel() * x.element_size(), "sent": rows})


if __name__ == "__main__":
    run(main)
