"""torch's own context parallelism: it cuts as a zigzag, gathers keys and values, and equals our ring.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_20_torch.py
Written by:  notebooks/20_context_parallel.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._attention import (
    _context_parallel_shard,
    _ContextParallel,
    _HeadTailLoadBalancer,
)
from torch.distributed.tensor.parallel import parallelize_module

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU
from lab_20_ring import ring_attention


class Attention(nn.Module):
    """What ``_ContextParallel`` wraps: by now ``k`` and ``v`` are those of all ranks, rank after rank."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(20)  # the same sequences on all ranks
    length = 16 * ranks
    qkv = torch.randn(3, 2, 4, length, 8, dtype=torch.float64, device=device)
    positions = torch.arange(length, device=device)

    mesh = init_device_mesh(device.type, (ranks,))
    zigzag = _HeadTailLoadBalancer(length, ranks, device.type)
    *parts, positions = _context_parallel_shard(mesh, [*qkv, positions], [2, 2, 2, 0], zigzag)
    style = _ContextParallel(seq_dim=2, attention_type=_ContextParallel.AttentionType.FLEX)
    attention = parallelize_module(Attention(), mesh, style)

    of_keys = positions.new_empty(length)
    dist.all_gather_into_tensor(of_keys, positions)
    seen = positions.unsqueeze(-1) >= of_keys  # causal, by places in the whole sequence
    parts = [part.requires_grad_() for part in parts]
    out = attention(*parts, seen)
    gradients = torch.autograd.grad(out.square().sum(), parts)

    ours = ring_attention(*parts)
    our_gradients = torch.autograd.grad(ours.square().sum(), parts)
    names = ("output", "gradient of q", "gradient of k", "gradient of v")
    for name, theirs, hand in zip(names, (out, *gradients), (ours, *our_gradients), strict=True):
        assert torch.allclose(theirs, hand, rtol=0, atol=1e-12), f"rank {rank}: {name} differs from our ring"
    if rank == 0:
        print(f"rank 0 holds positions {positions.tolist()}")
        print(f"equal to our ring: {', '.join(names)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
