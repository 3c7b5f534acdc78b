"""A DDP by hand, first and second step: after backward, an all-reduce for each gradient, or one for all.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_09/proof_after.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.side_by_side import train_side_by_side


@dataclass(frozen=True)
class Config:
    tolerance: float = 1e-12  # float64


class NaiveDDP(nn.Module):
    """Data parallelism that communicates after the backward pass, parameter by parameter.

    Args:
        module: the model, built alike on each rank. Its parameters and buffers become rank 0's.
        process_group: the ranks that average their gradients; None for all.

    Call ``reduce_gradients()`` between ``backward()`` and ``optimizer.step()``, on all ranks.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module = module
        self.process_group = process_group
        self.ranks = dist.get_world_size(process_group)
        self.trainable = [p for p in module.parameters() if p.requires_grad]
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], process_group)

    def forward(self, *inputs, **kwargs):
        broadcast_from_rank_0([buffer.data for buffer in self.module.buffers()], self.process_group)
        return self.module(*inputs, **kwargs)

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. One that no rank has stays None."""
        used = torch.tensor([p.grad is not None for p in self.trainable], dtype=torch.int32)
        used = used.to(self.trainable[0].device)
        dist.all_reduce(used, group=self.process_group)  # on how many ranks each parameter was used
        for parameter, users in zip(self.trainable, used.tolist(), strict=True):
            if users == 0:
                continue
            if parameter.grad is None:  # used elsewhere: this rank adds nothing, but takes part
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self.process_group)
            parameter.grad /= self.ranks


class FlatDDP(NaiveDDP):
    """The same with all gradients in one tensor; all that learns has one dtype.

    Source: DistributedDataParallel of PyTorch 0.4.1 over nccl, there in flat tensors of up to 256 MB.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        sizes = [p.numel() for p in self.trainable]
        sizes.append(len(self.trainable))  # at the end: one number for each parameter, was it used?
        self.flat = self.trainable[0].new_zeros(sum(sizes))
        self.parts = self.flat.split(sizes)

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
        # 5 parameters are used in each step, the 2 of the branch in some; one more call says which.
        of_naive = [6 if step % 3 == 0 else 8 for step in range(6)]
        for way, calls in ((NaiveDDP, of_naive), (FlatDDP, [1] * 6)):
            print_on_rank_0(f"{way.__name__}:")
            result = train_side_by_side(way, group, tolerance=cfg.tolerance)
            assert result.calls == calls, result.calls


if __name__ == "__main__":
    run(main, Config())
