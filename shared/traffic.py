"""What a rank sends, counted twice: where tensors go out, and by the kernel. Taught in lesson 05."""

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

SENDING = ("send", "isend")
BYTES_ACKED = 120  # offset of tcpi_bytes_acked in struct tcp_info, linux/tcp.h, since Linux 4.1


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

    def counting(function):
        def wrapper(tensor: torch.Tensor, dst=None, group=None, tag=0, group_dst=None):
            sent.messages.append(
                (tensor.numel() * tensor.element_size(), dst if dst is not None else group_dst)
            )
            return function(tensor, dst, group=group, tag=tag, group_dst=group_dst)

        return wrapper

    originals = {name: getattr(distributed_c10d, name) for name in SENDING}
    places = (dist, distributed_c10d)  # P2POp looks its operation up in the second
    try:
        for name, function in originals.items():
            for place in places:
                setattr(place, name, counting(function))
        yield sent
    finally:
        for name, function in originals.items():
            for place in places:
                setattr(place, name, function)


def wire_bytes() -> int | None:
    """Bytes that this process's TCP sockets have delivered so far, as Linux counts them.

    Reads ``TCP_INFO`` of each socket that the process has open, gloo's included (tcp(7)). Headers of
    TCP are not in it, gloo's own are. None where there is no ``TCP_INFO`` of this form.
    """
    if sys.platform != "linux":
        return None
    total = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as sock:
                internet = sock.family in (socket.AF_INET, socket.AF_INET6)
                if not internet or sock.type != socket.SOCK_STREAM:
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue  # a descriptor that was closed meanwhile
        if len(info) < BYTES_ACKED + 8:
            return None
        total += struct.unpack_from("Q", info, BYTES_ACKED)[0]
    return total
