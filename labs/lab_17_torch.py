"""A transformer block by torch's plan, as one types it at work: cut before it has memory, then loaded.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_17_torch.py
Written by:  notebooks/17_tensor_parallel.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
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
        self.head_width = width // heads  # a rank has fewer heads, of the same width
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = [layer(x) for layer in (self.query, self.key, self.value)]
        q, k, v = (p.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for p in projected)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4 * width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """(batch, length, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = GatedMLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def plan_of_block() -> dict[str, ParallelStyle]:
    """Tensor and sequence parallelism: the block takes and returns this rank's part of the sequence."""
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())  # once for all
    return {
        "norm1": SequenceParallel(),
        "attention": gather,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "mlp": gather,
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }


def split_block(width: int, heads: int, mesh: DeviceMesh, values: dict) -> Block:
    """A block of which each rank allocates its part alone. Collective.

    Args:
        values: the state dict of the whole block, on *global* rank 0; empty on the others. All ranks of the
            job must call this together, for the same block. With pipeline stages, or where a rank cannot
            hold it, load a checkpoint into the parts: ``dcp.load``, lesson 11.
    """
    with torch.device("meta"):  # shapes, no memory
        block = Block(width, heads).double()
    if heads % mesh.size():
        raise ValueError(f"{mesh.size()} ranks do not divide {heads} heads")  # no plan checks it
    parallelize_module(block, mesh, plan_of_block())
    block.to_empty(device=mesh.device_type)  # memory for this rank's part
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(block, values, options=options)
    return block


def train(block: Block, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of training, of a whole block or of a split one. Returns output and norm of the gradient."""
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1, foreach=True)  # as on GPUs
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

    values = whole.state_dict() if rank == 0 else {}
    block = split_block(8 * ranks, 2 * ranks, mesh, values)
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
