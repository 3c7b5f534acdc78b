"""Two messages at once, without a deadlock. Taught in lesson 03."""

import torch
import torch.distributed as dist


def sendrecv(outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int) -> None:
    """Send ``outgoing`` to rank ``to`` while receiving ``incoming`` from rank ``source``; wait for both.

    The two go out as a batch: with nccl, single calls would run one after the other, and ranks that all
    send first would wait for each other.
    """
    operations = [dist.P2POp(dist.isend, outgoing, to), dist.P2POp(dist.irecv, incoming, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
