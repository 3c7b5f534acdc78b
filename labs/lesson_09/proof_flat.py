"""A DDP by hand, second step: after backward, one all-reduce for all gradients together.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_09/proof_flat.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.group import process_group
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.side_by_side import train_side_by_side


@dataclass(frozen=True)
class Config:
    tolerance: float = 1e-12  # float64


class FlatDDP(nn.Module):
    """Data parallel training that communicates when backward is over, all gradients in one tensor.

    Args:
        module: the model, built alike on each rank, all that learns of one dtype. Its parameters and
            buffers become rank 0's.
        process_group: the ranks that average their gradients; None for all.

    Call ``reduce_gradients()`` between ``backward()`` and ``optimizer.step()``, on all ranks.
    Source: DistributedDataParallel of PyTorch 0.4.1 over nccl, there in flat tensors of up to 256 MB.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module = module
        self.process_group = process_group
        self.ranks = dist.get_world_size(process_group)
        self.trainable = [p for p in module.parameters() if p.requires_grad]
        sizes = [p.numel() for p in self.trainable]
        sizes.append(len(self.trainable))  # at the end: one number for each parameter, was it used?
        self.flat = self.trainable[0].new_zeros(sum(sizes))
        self.parts = self.flat.split(sizes)
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], process_group)

    def forward(self, *inputs, **kwargs):
        broadcast_from_rank_0([buffer.data for buffer in self.module.buffers()], self.process_group)
        return self.module(*inputs, **kwargs)

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. One that no rank has stays None."""
        for parameter, part in zip(self.trainable, self.parts, strict=False):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(parameter.grad.flatten())
        used = torch.tensor([p.grad is not None for p in self.trainable])
        self.parts[-1].copy_(used)
        dist.all_reduce(self.flat, group=self.process_group)
        self.flat /= self.ranks
        share_of_users = self.parts[-1].tolist()  # on a GPU this line waits for the all-reduce, each step
        for parameter, mean, share in zip(self.trainable, self.parts, share_of_users, strict=False):
            if share == 0:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(mean.view_as(parameter))


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        result = train_side_by_side(FlatDDP, group, tolerance=cfg.tolerance)
        assert result.calls == [1] * 6, result.calls
        record_results("09_flat", result._asdict())


if __name__ == "__main__":
    run(main, Config())
