"""One matrix for query, key and value, another for gate and up: torch's plan cuts them across, silently.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_17_fused.py
Written by:  notebooks/17_tensor_parallel.ipynb (edit it there)
"""

import copy
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before setup(): imported later, the exit may abort (lesson 08)
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

PLAN = {
    "qkv": ColwiseParallel(),
    "out": RowwiseParallel(),
    "gate_up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


class FusedBlock(nn.Module):
    """(batch, length, width) to the same. Half as many heads of keys and values as of queries."""

    def __init__(self, heads: int, head_width: int = 4) -> None:
        super().__init__()
        width = heads * head_width
        self.head_width = head_width
        self.sizes = [width, width // 2, width // 2]  # outputs of query, key and value, on this process
        self.qkv = nn.Linear(width, sum(self.sizes))
        self.out = nn.Linear(width, width)
        self.gate_up = nn.Linear(width, 8 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = self.qkv(x).split(self.sizes, -1)
        q, k, v = (p.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for p in projected)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(x).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def by_rank(fused: torch.Tensor, sizes: Sequence[int], ranks: int) -> torch.Tensor:
    """Rows q, k, v to q0, k0, v0, q1, k1, v1, ...: cut across, rank r then has its part of each."""
    parts = [projection.chunk(ranks) for projection in fused.split(list(sizes))]
    return torch.cat([part[rank] for rank in range(ranks) for part in parts])


def by_projection(ordered: torch.Tensor, sizes: Sequence[int], ranks: int) -> torch.Tensor:
    """The inverse, for a checkpoint that others can read."""
    parts = ordered.split([size // ranks for size in sizes] * ranks)
    return torch.cat([part for first in range(len(sizes)) for part in parts[first :: len(sizes)]])


def fused_layers(whole: FusedBlock) -> dict[str, list[int]]:
    """{fused layer: the sizes of its projections} of a block that is not cut yet."""
    return {"qkv": list(whole.sizes), "gate_up": [whole.gate_up.out_features // 2] * 2}


def train(block: FusedBlock, x: torch.Tensor) -> torch.Tensor:
    """One step; the output before it."""
    y = block(x)
    y.square().sum().backward()
    torch.optim.SGD(block.parameters(), lr=0.01).step()
    return y.detach()


def main() -> None:
    device = setup()
    ranks = dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,))
    torch.manual_seed(0)  # the same block and the same batch on all ranks
    whole = FusedBlock(heads=2 * ranks).double().to(device)
    x = torch.randn(2, 6, whole.down.out_features, dtype=torch.float64).to(device)
    fused = fused_layers(whole)
    blocks = {"cut across": copy.deepcopy(whole), "cut by projection": copy.deepcopy(whole)}
    with torch.no_grad():
        for name, sizes in fused.items():
            layer = blocks["cut by projection"].get_submodule(name)
            for parameter in layer.parameters():  # the bias, too
                parameter.copy_(by_rank(parameter, sizes, ranks))

    expected = train(whole, x)
    for how, block in blocks.items():
        block.sizes = [size // ranks for size in block.sizes]  # the heads of this rank
        parallelize_module(block, mesh, PLAN)
        off = (train(block, x) - expected).abs().max().item()
        if dist.get_rank() == 0:
            print(f"{how}: no error; output off by {off:.1e}, its largest element {expected.abs().max():.1f}")
        assert (off < 1e-12) == (how == "cut by projection"), f"{how}: off by {off:.1e}"

    for name, parameter in blocks["cut by projection"].named_parameters():
        saved = parameter.full_tensor()
        layer = name.split(".")[0]
        if layer in fused:
            saved = by_projection(saved, fused[layer], ranks)
        assert torch.allclose(saved, whole.get_parameter(name), rtol=0, atol=1e-12), f"{name} differs"
    if dist.get_rank() == 0:
        print("after a step, saved by projection: every parameter equals that of one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
