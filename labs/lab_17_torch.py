"""A transformer block by torch's plan, as one types it at work, beside the whole block on one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_17_torch.py
Written by:  notebooks/17_tensor_parallel.ipynb (edit it there)
"""

import copy
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before setup(): imported later, the exit may abort (lesson 08)
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads  # those that this process computes
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = [layer(x) for layer in (self.query, self.key, self.value)]
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in projected)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """(batch, length, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        layers = {"up": nn.Linear(width, 4 * width), "gelu": nn.GELU(), "down": nn.Linear(4 * width, width)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def plan_of_block() -> dict[str, ParallelStyle]:
    """Tensor and sequence parallel: the block takes and returns this rank's part of the sequence."""
    return {
        "norm1": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "mlp.up": ColwiseParallel(input_layouts=Shard(1)),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }


def train(block: Block, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of training, of a whole block or of a split one. Returns output and norm of the gradient."""
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1, foreach=True)  # the default on GPUs
    y = block(x)
    y.square().sum().backward()
    norm = nn.utils.clip_grad_norm_(block.parameters(), max_norm=1.0)
    optimizer.step()
    return y, norm


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,))
    torch.manual_seed(0)  # the same block and the same batch on all ranks
    whole = Block(8 * ranks, 2 * ranks).double().to(device)
    x = torch.randn(3, 4 * ranks, 8 * ranks, dtype=torch.float64).to(device)

    block = copy.deepcopy(whole)
    assert block.attention.heads % ranks == 0, "the ranks do not divide the heads"
    block.attention.heads //= ranks  # no plan does this, and none checks it
    parallelize_module(block, mesh, plan_of_block())
    y, norm = train(block, x.chunk(ranks, 1)[rank])

    y_alone, norm_alone = train(whole, x)
    assert torch.allclose(y, y_alone.chunk(ranks, 1)[rank], rtol=0, atol=1e-12), "the output differs"
    assert torch.allclose(norm.full_tensor(), norm_alone, rtol=1e-12, atol=0), "the gradient's norm differs"
    for name, parameter in block.named_parameters():
        alone = whole.get_parameter(name)
        assert torch.allclose(parameter.full_tensor(), alone, rtol=0, atol=1e-12), f"{name} differs"
    if rank == 0:
        weight = block.mlp.down.weight
        here = tuple(weight.to_local().shape)
        print(f"mlp.down.weight: {tuple(weight.shape)}, {weight.placements}, on this rank {here}")
        print("output, norm of the gradient, and parameters after a clipped step: equal to one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
