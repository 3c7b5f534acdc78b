"""One matrix for query, key and value, another for gate and up: a plan cuts them across, silently.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_17/proof_fused.py
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    tolerance: float = 1e-12  # float64


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


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        ranks = group.world_size
        mesh = init_device_mesh(group.device.type, (ranks,))
        torch.manual_seed(0)  # the same block and the same batch on all ranks
        whole = FusedBlock(heads=2 * ranks).double().to(group.device)
        x = torch.randn(2, 6, whole.down.out_features, dtype=torch.float64).to(group.device)
        fused = fused_layers(whole)
        blocks = {"cut across": copy.deepcopy(whole), "cut by projection": copy.deepcopy(whole)}
        with torch.no_grad():
            for name, sizes in fused.items():
                for parameter in (
                    blocks["cut by projection"].get_submodule(name).parameters()
                ):  # the bias, too
                    parameter.copy_(by_rank(parameter, sizes, ranks))

        expected = train(whole, x)
        for how, block in blocks.items():
            block.sizes = [size // ranks for size in block.sizes]  # the heads of this rank
            parallelize_module(block, mesh, PLAN)
            off = (train(block, x) - expected).abs().max().item()
            print_on_rank_0(
                f"{how}: no error; output off by {off:.1e}, up to {expected.abs().max():.1f} large"
            )
            if (off < cfg.tolerance) != (how == "cut by projection"):
                raise CourseError(f"{how}: off by {off:.1e}")

        for name, parameter in blocks["cut by projection"].named_parameters():
            saved = parameter.full_tensor()
            layer = name.split(".")[0]
            if layer in fused:
                saved = by_projection(saved, fused[layer], ranks)
            assert_equal(f"saved: {name}", saved, whole.get_parameter(name).detach(), cfg.tolerance)
        print_on_rank_0("after a step, saved by projection: every parameter equals that of one process")


if __name__ == "__main__":
    run(main, Config())
