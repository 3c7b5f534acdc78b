"""RPC workers, started and stopped. ``init_rpc`` and ``shutdown`` themselves are taught in lesson 23."""

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import rpc

from shared.runtime.errors import CourseError
from shared.runtime.group import Group

OUR_GROUP_WARNING = "You are using a Backend"  # torch warns of its own code, pytorch/pytorch#149393
TCP_ONLY: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]}  # nothing through shared memory


def stay_on_loopback() -> None:
    """Have TensorPipe listen on the loopback device when all ranks are on this machine.

    Otherwise it looks up the machine's own name, which need not resolve. ``TP_SOCKET_IFNAME`` wins.
    """
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        os.environ.setdefault("TP_SOCKET_IFNAME", names[0])


def start_workers(group: Group, *, timeout_s: float = 20.0, tcp_only: bool = False) -> list[str]:
    """Become ``worker{rank}``; return the names of all workers in rank order. Collective.

    Args:
        timeout_s: seconds that a call may take.
        tcp_only: send all through sockets, where ``shared.comm.kernel.wire_bytes`` sees it.

    Raises:
        CourseError: a worker does not answer to its name.
    """
    stay_on_loopback()
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=8, rpc_timeout=timeout_s, **(TCP_ONLY if tcp_only else {})
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", OUR_GROUP_WARNING)
        rpc.init_rpc(
            f"worker{group.rank}",
            rank=group.rank,
            world_size=group.world_size,
            rpc_backend_options=options,
        )
    names = [f"worker{rank}" for rank in range(group.world_size)]
    answers = [rpc.rpc_async(name, os.getenv, args=("RANK",)) for name in names]
    heard = [f"worker{answer.wait()}" for answer in answers]
    if heard != names:
        raise CourseError(f"called were {names}, but those who answered are {heard}")
    return names


@contextmanager
def rpc_workers(group: Group, **options) -> Iterator[list[str]]:
    """``start_workers``, and ``rpc.shutdown()`` at the end: all wait until nobody has a call under way.

    After an error inside nothing is shut down: the process is to end.
    """
    yield start_workers(group, **options)
    rpc.shutdown()
