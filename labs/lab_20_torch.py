"""torch's own context parallelism: it cuts as a zigzag, gathers keys and values, and equals our ring.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_20_torch.py
Written by:  notebooks/20_context_parallel.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_20_ring import ring_attention, setup
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._attention import (
    _context_parallel_shard,
    _ContextParallel,
    _HeadTailLoadBalancer,
)
from torch.distributed.tensor.parallel import parallelize_module


class Attention(nn.Module):
    """What ``_ContextParallel`` wraps: by now ``k`` and ``v`` are those of all ranks, rank after rank."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Ring(nn.Module):
    """The same by hand."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return ring_attention(q, k, v)


class Layer(nn.Module):
    """(batch, length, width) to the same. ``attention`` can be replaced."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.attention = Attention()

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, dim=1)
        return self.attention(q, k, v, seen).transpose(1, 2).flatten(2)


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(20)  # the same model and the same sequences on all ranks
    length, width = 16 * ranks, 32
    layer = Layer(width, heads=4).double().to(device)
    x, target = torch.randn(2, 2, length, width, dtype=torch.float64, device=device)
    positions = torch.arange(length, device=device)

    mesh = init_device_mesh(device.type, (ranks,))
    zigzag = _HeadTailLoadBalancer(length, ranks, device.type)
    x, target, positions = _context_parallel_shard(mesh, [x, target, positions], [1, 1, 0], zigzag)
    style = _ContextParallel(seq_dim=2, attention_type=_ContextParallel.AttentionType.FLEX)
    parallelize_module(layer.attention, mesh, style)

    of_keys = positions.new_empty(length)
    dist.all_gather_into_tensor(of_keys, positions)
    seen = positions.unsqueeze(-1) >= of_keys  # causal: where these queries and the gathered keys stand
    out = layer(x, seen)
    (by_torch,) = torch.autograd.grad(F.mse_loss(out, target), layer.qkv.weight)

    layer.attention = Ring()
    by_hand = layer(x, seen)
    (by_ring,) = torch.autograd.grad(F.mse_loss(by_hand, target), layer.qkv.weight)
    assert torch.allclose(out, by_hand, rtol=0, atol=1e-12), f"rank {rank}: output differs from our ring's"
    assert torch.allclose(by_torch, by_ring, rtol=0, atol=1e-12), f"rank {rank}: gradient differs from ours"
    if rank == 0:
        print(f"rank 0 holds positions {positions.tolist()}")
        print("output and gradient equal those of our ring")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
