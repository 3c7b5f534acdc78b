"""What a rank sends, counted twice: where tensors go out, and by the kernel. Taught in lesson 05."""

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shared.runtime.errors import CourseError

SENDING = ("send", "isend")
BYTES_SENT = 200  # offset of tcpi_bytes_sent in struct tcp_info, linux/tcp.h, since Linux 4.19
BYTES_RETRANS = 208  # of those, the ones that were sent again


class TrafficError(CourseError, AssertionError):
    """A rank sent more, less or otherwise than a lesson claims."""


@dataclass
class Sent:
    """Point-to-point messages of one rank: ``messages`` holds (bytes, destination) in order."""

    messages: list[tuple[int, int]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.messages)

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.messages)


@contextmanager
def count_sent() -> Iterator[Sent]:
    """Count each tensor that this rank hands to ``send``, ``isend`` or ``batch_isend_irecv``.

    The functions themselves are wrapped while the context is open, so the count does not come from a
    formula. A collective such as ``all_reduce`` sends inside the library and counts as nothing here;
    ``wire_bytes`` sees that too.
    """
    sent = Sent()

    inside = False  # torch's send calls isend: one message, to be counted once

    def counting(function):
        def wrapper(tensor: torch.Tensor, dst=None, group=None, tag=0, group_dst=None):
            nonlocal inside
            if inside:
                return function(tensor, dst, group=group, tag=tag, group_dst=group_dst)
            sent.messages.append((tensor.numel() * tensor.element_size(), group_dst if dst is None else dst))
            inside = True
            try:
                return function(tensor, dst, group=group, tag=tag, group_dst=group_dst)
            finally:
                inside = False

        return wrapper

    originals = {name: getattr(distributed_c10d, name) for name in SENDING}
    places = (dist, distributed_c10d)  # P2POp looks its operation up in the second
    try:
        for name, function in originals.items():
            wrapper = counting(function)  # one for both places: P2POp compares functions
            for place in places:
                setattr(place, name, wrapper)
        yield sent
    finally:
        for name, function in originals.items():
            for place in places:
                setattr(place, name, function)


def wire_bytes() -> int | None:
    """Bytes that this process's TCP sockets have sent so far, as Linux counts them, repeats left out.

    Reads ``TCP_INFO`` of each socket that the process has open, gloo's included (tcp(7)). Headers of
    TCP are not in it, gloo's own are. None where there is no ``TCP_INFO`` of this form. What another
    rank has received is in it; the count of acknowledged bytes, in the same struct, comes up to 40 ms later.
    """
    if sys.platform != "linux":
        return None
    total = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if not str(descriptor.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as sock:
                internet = sock.family in (socket.AF_INET, socket.AF_INET6)
                if not internet or sock.type != socket.SOCK_STREAM:
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue  # a descriptor that was closed meanwhile
        if len(info) < BYTES_RETRANS + 8:
            return None
        sent, again = struct.unpack_from("QQ", info, BYTES_SENT)
        total += sent - again
    return total


def assert_ring_traffic(sent: Sent, whole: int, ranks: int) -> None:
    """Check that this rank sent what a ring all-reduce of ``whole`` bytes over ``ranks`` ranks sends.

    That is 2 (n - 1) messages to one neighbour, each of a chunk of whole / n bytes, rounded up or down to
    an element by ``tensor_split``. Raises ``TrafficError``, which says what differs.
    """
    messages = 2 * (ranks - 1)
    if sent.calls != messages:
        raise TrafficError(f"messages sent: {sent.calls}; a ring of {ranks} sends {messages}")
    if len({destination for _, destination in sent.messages}) > 1:
        raise TrafficError("messages went to more than one neighbour")
    for size, _ in sent.messages:
        if abs(size - whole / ranks) >= 8:  # one element of float64
            raise TrafficError(f"a message has {size:,} bytes; a chunk has {whole / ranks:,.0f}")
    equal = whole % (8 * ranks) == 0  # then all chunks have equally many elements of up to 8 bytes
    if equal and sent.bytes * ranks != messages * whole:
        raise TrafficError(f"bytes sent: {sent.bytes:,}; a ring sends {messages * whole // ranks:,}")
