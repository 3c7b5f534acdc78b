"""What the kernel saw: bytes that left this process by TCP. Taught in lesson 05.

It is the witness that knows nothing of torch: ``shared.comm.record`` counts what a rank asked for, this
counts what went out.
"""

import os
import socket
import struct
import sys
from pathlib import Path

BYTES_SENT = 200  # offset of tcpi_bytes_sent in struct tcp_info, linux/tcp.h, since Linux 4.19
BYTES_RETRANS = 208  # of those, the ones that were sent again


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
