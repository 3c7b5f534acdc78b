"""Exercise 03: send a tensor to the right neighbour, when no rank knows the others' lengths."""

import torch
import torch.distributed as dist


def swap(outgoing: torch.Tensor, right: int, incoming: torch.Tensor, left: int) -> None:
    """Send ``outgoing`` to rank ``right``, and fill ``incoming`` with what rank ``left`` sends.

    All ranks call this at the same time. On return both tensors may be used. The messages move on nccl, too.
    """
    # solution: begin
    operations = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    # solution: end


def exchange(outgoing: torch.Tensor) -> torch.Tensor:
    """Send ``outgoing`` to the right neighbour; return what the left neighbour sends.

    The ranks form a ring: rank 0 is the right neighbour of the last rank. ``outgoing`` is one-dimensional and
    contiguous, of the same dtype on each rank. Its length differs from rank to rank, and a rank knows only
    its own. Only messages are used, and no rank sends more than its numbers and their count.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    # solution: begin
    length = torch.tensor([len(outgoing)], device=outgoing.device)
    length_there = torch.empty_like(length)
    swap(length, right, length_there, left)
    incoming = outgoing.new_empty(int(length_there))
    swap(outgoing, right, incoming, left)
    # solution: end
    return incoming
