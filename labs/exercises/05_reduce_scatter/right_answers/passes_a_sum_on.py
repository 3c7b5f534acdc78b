# accepted: it never writes to x, and passes on one buffer that grows from rank to rank
"""What arrives, plus my own chunk, is what goes out next."""

import torch
import torch.distributed as dist


def ring_reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.view(n, -1)
    passing = chunks[(rank - 1) % n].clone()
    for step in range(2, n + 1):
        incoming = torch.empty_like(passing)
        receiving = dist.irecv(incoming, (rank - 1) % n)
        dist.send(passing, (rank + 1) % n)
        receiving.wait()
        passing = incoming + chunks[(rank - step) % n]
    return passing
