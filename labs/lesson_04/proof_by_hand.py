"""Each collective rebuilt from single messages, and from other collectives: equal to torch's in every group.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_04/proof_by_hand.py
"""

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from shared.comm.kernel import wire_bytes
from shared.comm.p2p import sendrecv
from shared.comm.record import record
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run

import lab_04_collectives

# `ranks` are a group's members by their global rank, which send and recv want; a rank's index in that list is
# its rank within the group. ranks[0] is source and destination. A piece is 1 / n of a whole tensor.
BYTES_RECEIVED = 128  # offset of tcpi_bytes_received in struct tcp_info, linux/tcp.h


def broadcast(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """The first rank's x, everywhere: a chain, in which each passes it on."""
    me = ranks.index(dist.get_rank())
    if me > 0:
        dist.recv(x, ranks[me - 1])
    if me < len(ranks) - 1:
        dist.send(x, ranks[me + 1])
    return x


def scatter(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """My piece of the first rank's x."""
    pieces, me = x.chunk(len(ranks)), ranks.index(dist.get_rank())
    if me > 0:
        dist.recv(pieces[me], ranks[0])
    else:
        for other in range(1, len(ranks)):
            dist.send(pieces[other], ranks[other])
    return pieces[me]


def gather(piece: torch.Tensor, ranks: list[int]) -> torch.Tensor | None:
    """The pieces of all, on the first rank; None elsewhere."""
    if dist.get_rank() != ranks[0]:
        dist.send(piece, ranks[0])
        return None
    whole = piece.repeat(len(ranks))
    for other in range(1, len(ranks)):
        dist.recv(whole.chunk(len(ranks))[other], ranks[other])
    return whole


def all_gather(piece: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """The pieces of all, everywhere. The exercise does it with fewer bytes."""
    whole = gather(piece, ranks)
    if whole is None:
        whole = piece.repeat(len(ranks))
    return broadcast(whole, ranks)


def all_to_all(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """Piece `me` of every rank. In round d we send d ranks to the right and receive from d to the left."""
    n, me = len(ranks), ranks.index(dist.get_rank())
    received = x.clone()
    outgoing, incoming = x.chunk(n), received.chunk(n)
    for d in range(1, n):
        right, left = (me + d) % n, (me - d) % n
        sendrecv(outgoing[right], ranks[right], incoming[left], ranks[left])
    return received


def reduce(x: torch.Tensor, ranks: list[int]) -> torch.Tensor | None:
    """The sum, on the first rank; None elsewhere. A chain from the last rank, in which each adds its own."""
    me = ranks.index(dist.get_rank())
    if me < len(ranks) - 1:
        incoming = torch.empty_like(x)
        dist.recv(incoming, ranks[me + 1])
        x = x + incoming
    if me == 0:
        return x
    dist.send(x, ranks[me - 1])
    return None


def all_reduce(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """The sum, everywhere. Lesson 05 does it with fewer bytes."""
    total = reduce(x, ranks)
    if total is None:
        total = torch.empty_like(x)
    return broadcast(total, ranks)


def reduce_scatter(x: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """My piece of the sum: all send it to me, and I add."""
    return all_to_all(x, ranks).view(len(ranks), -1).sum(0)


BY_HAND = (broadcast, scatter, gather, all_gather, all_to_all, reduce, all_reduce, reduce_scatter)


def wire_received() -> int:
    """Bytes that this process's TCP sockets have received: what ``wire_bytes`` is for those sent."""
    total = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if not str(descriptor.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, BYTES_RECEIVED)[0]
        except OSError:
            continue  # a descriptor that was closed meanwhile
    return total


def on_the_wire(pg: dist.ProcessGroup) -> tuple[int, int]:
    """Bytes that this rank has sent and received so far; (0, 0) where nobody counts them."""
    dist.barrier(pg)
    sent = wire_bytes() if dist.get_backend(pg) == "gloo" else None
    if sent is None:
        return 0, 0
    return sent, wire_received()


def measure(by_hand: Callable, ranks: list[int], pg: dist.ProcessGroup, x: torch.Tensor) -> dict:
    """Run a collective by hand and by torch, compare, and return what this rank sent and received in each."""
    name = by_hand.__name__
    if "gather" in name:
        x = x[: len(x) // len(ranks)]
    with record() as log:
        ours = by_hand(x.clone(), ranks)
    collective = getattr(lab_04_collectives, name)
    before = on_the_wire(pg)
    theirs = collective(x.clone(), pg)
    after = on_the_wire(pg)
    both_empty = ours is None and theirs is None
    assert both_empty or torch.equal(ours, theirs), f"{name} over ranks {ranks} differs"
    wire = [now - then for then, now in zip(before, after, strict=True)]
    return {"sent": log.bytes("send"), "received": log.bytes("recv"), "wire": max(wire)}


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


def by_torch(name: str, x: torch.Tensor, pg: dist.ProcessGroup) -> torch.Tensor:
    """Torch's collective, or a step without communication; NaN where torch promises nothing."""
    n = dist.get_world_size(pg)
    if name == "nothing":
        return x
    if name == "sum_here":
        return x.view(n, -1).sum(0)
    result = getattr(lab_04_collectives, name)(x.clone(), pg)
    if result is not None:
        return result
    numel = n * len(x) if name == "gather" else len(x)
    return x.new_full((numel,), torch.nan)


def holds(left: str, right: tuple[str, ...], pg: dist.ProcessGroup, x: torch.Tensor) -> bool:
    """Whether ``left``, and the steps of ``right`` one after another, leave the same on this rank."""
    expected = by_torch(left, x, pg)
    for name in right:
        x = by_torch(name, x, pg)
    return torch.equal(x, expected)


def groups_of(n: int) -> list[list[int]]:
    """The first 2, 3, ... n ranks, the even and the odd ones; groups of one are left out."""
    everyone = list(range(n))
    groups = [everyone[:size] for size in range(2, n + 1)]
    for some in (everyone[::2], everyone[1::2]):
        if len(some) > 1:
            groups.append(some)
    return groups


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        # Whole numbers, so that sums are exact; 210,000 of them divide by every number of ranks up to 8.
        x = torch.randint(1000, (210_000,), device=group.device).double()
        few = x[:840]
        rows = {}
        for ranks in groups_of(group.world_size):
            pg = dist.new_group(ranks)  # called by all, including ranks outside the group
            if group.rank in ranks:
                rows[str(ranks)] = {call.__name__: measure(call, ranks, pg, x) for call in BY_HAND}
                for left, right in IDENTITIES:
                    assert holds(left, right, pg, few), f"over ranks {ranks}, {left} is not {right}"
            dist.barrier()
            print_on_rank_0(f"ranks {ranks}: {len(BY_HAND)} collectives by hand equal torch's")
        one_alone = holds("nothing", ("all_to_all",), dist.group.WORLD, few)
        assert not one_alone, "one all_to_all changes nothing: the comparison lets anything pass"
        for left, right in IDENTITIES:
            print_on_rank_0(f"{left:14} = {', '.join(right)}")
        record_results("04_by_hand", {"whole": x.nbytes, "groups": rows})


if __name__ == "__main__":
    run(main)
