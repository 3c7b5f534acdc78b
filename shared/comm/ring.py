"""The two halves of a ring all-reduce, on the first n ranks, and what a ring sends. Taught in lesson 05."""

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv
from shared.comm.record import Call
from shared.runtime.errors import CourseError


class TrafficError(CourseError, AssertionError):
    """A rank sent more, less or otherwise than a lesson claims."""


def ring_reduce_scatter(x: torch.Tensor, n: int) -> torch.Tensor:
    """Return this rank's of ``n`` equal chunks of ``x``, summed over ranks 0 .. n - 1. Collective among them.

    ``x`` is contiguous and serves as work space: its other chunks end as partial sums. Each rank sends
    n - 1 chunks to its right neighbour.
    """
    rank = dist.get_rank()
    chunks = x.chunk(n)
    for step in range(1, n):
        outgoing = chunks[(rank - step) % n]
        target = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(target)
        sendrecv(outgoing, (rank + 1) % n, incoming, (rank - 1) % n)
        target += incoming
    return chunks[rank]


def ring_all_gather(x: torch.Tensor, n: int) -> None:
    """Fill ``x`` on ranks 0 .. n - 1: chunk r of ``n`` equal ones is rank r's. Collective among them."""
    rank = dist.get_rank()
    chunks = x.chunk(n)
    for step in range(n - 1):
        sendrecv(chunks[(rank - step) % n], (rank + 1) % n, chunks[(rank - step - 1) % n], (rank - 1) % n)


def assert_ring_traffic(sent: list[Call], whole: int, ranks: int) -> None:
    """Check that this rank ``sent`` what a ring all-reduce of ``whole`` bytes over ``ranks`` ranks sends.

    That is 2 (n - 1) messages to one neighbour, each of a chunk of whole / n bytes, rounded up or down to
    an element by ``tensor_split``. Raises ``TrafficError``, which says what differs.
    """
    messages = 2 * (ranks - 1)
    if len(sent) != messages:
        raise TrafficError(f"messages sent: {len(sent)}; a ring of {ranks} sends {messages}")
    if len({call.peer for call in sent}) > 1:
        raise TrafficError("messages went to more than one neighbour")
    for call in sent:
        if abs(call.bytes - whole / ranks) >= 8:  # one element of float64
            raise TrafficError(f"a message has {call.bytes:,} bytes; a chunk has {whole / ranks:,.0f}")
    equal = whole % (8 * ranks) == 0  # then all chunks have equally many elements of up to 8 bytes
    total = sum(call.bytes for call in sent)
    if equal and total * ranks != messages * whole:
        raise TrafficError(f"bytes sent: {total:,}; a ring sends {messages * whole // ranks:,}")
