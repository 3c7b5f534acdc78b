"""Experts with FSDP: two meshes over the same ranks, one for the experts and one for everything else.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_21_fsdp.py
Written by:  notebooks/21_expert_parallel.ipynb (edit it there)
"""

import copy
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import (
    all_to_all_single_autograd,  # private, used by torchtitan
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU
from lab_21_moe import ExpertParallelMoE, MoE


class Block(nn.Module):
    """A transformer's block, with a linear layer in place of attention."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.attention = nn.Linear(width, width, dtype=torch.float64)
        self.mlp = MoE(width, 4 * width, experts, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.attention(x))


def exchange_rows(rows: torch.Tensor, send: list[int], receive: list[int], group) -> torch.Tensor:
    return all_to_all_single_autograd(rows, receive, send, group)


def shard(blocks: nn.Sequential, ep: int, device_type: str) -> None:
    """Spread each block's experts over ``ep`` ranks; then FSDP shards them, and everything else.

    Not to be saved as it is: ranks along ep have different experts under one name. See ExpertsAlongEp in
    lesson_21/proof_checkpoint.py.
    """
    ranks = dist.get_world_size()
    dense = init_device_mesh(device_type, (ranks,), mesh_dim_names=("fsdp",))
    sparse = init_device_mesh(device_type, (ranks // ep, ep), mesh_dim_names=("efsdp", "ep"))
    for block in blocks:
        block.mlp = ExpertParallelMoE(block.mlp, sparse["ep"].get_group(), exchange_rows)
        experts = block.mlp.expert_count // ep
        uneven = experts % sparse["efsdp"].size() != 0  # some ranks would get fewer of them, or none
        placement = (lambda parameter: Shard(1)) if uneven else None  # None: dimension 0, the experts
        fully_shard(block.mlp.experts, mesh=sparse["efsdp"], shard_placement_fn=placement)
        fully_shard(block, mesh=dense)
    fully_shard(blocks, mesh=dense)
    for module in blocks.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the default is the size of its mesh
            module.set_force_sum_reduction_for_comms(True)  # gloo needs it for a factor of one's own
    # Gather before the host waits for the counts. Backward's lists, in the other order, are left out.
    for module, following in pairwise([blocks, *blocks]):
        module.set_modules_to_forward_prefetch([following, following.mlp.experts])


def clip(parameters: list[nn.Parameter], largest: float) -> None:
    """``clip_grad_norm_`` refuses two meshes. Here no two ranks hold the same shard, so all squares add up.

    With HSDP or TP some shards have copies: divide their squares by the number of copies. Lesson 22's
    ``clip_by_mesh`` would leave out the experts of other ranks along ep: these DTensors know efsdp alone.
    """
    shards = [p.grad.to_local() for p in parameters]
    squares = torch.stack([shard.square().sum() for shard in shards]).sum()
    dist.all_reduce(squares)
    factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for shard in shards:
        shard.mul_(factor)


def train(model: nn.Module, batches: torch.Tensor, numbers: int, clip_gradients: Callable) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x in batches:
        optimizer.zero_grad()
        error = (model(x) - x.flip(-1)).square().sum()
        (error / numbers).backward()  # this rank's part of the mean over all tokens
        clip_gradients(list(model.parameters()), 0.1)
        optimizer.step()


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ep = ranks if ranks % 2 else 2
    torch.manual_seed(0)  # on all ranks: one model, the same batches
    alone = nn.Sequential(Block(12, max(2, ep)), Block(12, 2 * ranks)).to(device)  # few experts, and many
    batches = torch.randn(3, 16 * ranks, 12, dtype=torch.float64, device=device)
    model = copy.deepcopy(alone)
    shard(model, ep, device.type)
    train(model, batches[:, rank::ranks], batches[0].numel(), clip)
    train(alone, batches, batches[0].numel(), nn.utils.clip_grad_norm_)
    for (name, ours), whole in zip(model.named_parameters(), alone.parameters(), strict=True):
        for mine, expected in ((ours.grad, whole.grad), (ours, whole)):
            part = expected.chunk(ep)[rank % ep] if "experts" in name else expected
            torch.testing.assert_close(mine.full_tensor(), part, rtol=0, atol=1e-12, msg=f"{name} differs")
    for block in model:
        for p in block.mlp.experts.parameters():
            assert p.to_local().numel(), f"rank {rank} holds nothing of its experts"
    if rank == 0:
        held = sum(p.to_local().numel() for p in model.parameters())
        print(f"a rank holds {held:,} of {sum(p.numel() for p in alone.parameters()):,} parameters")
        print("after 3 steps all gradients and parameters equal those of one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
