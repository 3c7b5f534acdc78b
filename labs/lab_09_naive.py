"""A DDP by hand, first step: after backward, one all-reduce for each parameter.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_09_naive.py
Written by:  notebooks/09_ddp_inside.ipynb
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


class NaiveDDP(nn.Module):
    """Data parallel training that communicates when backward is over, parameter by parameter.

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
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], process_group)

    def forward(self, *inputs, **kwargs):
        broadcast_from_rank_0(self.module.buffers(), self.process_group)
        return self.module(*inputs, **kwargs)

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. One that no rank has stays None."""
        trainable = [p for p in self.module.parameters() if p.requires_grad]
        used = torch.tensor([float(p.grad is not None) for p in trainable], device=trainable[0].device)
        dist.all_reduce(used, group=self.process_group)  # on how many ranks each parameter was used
        for parameter, users in zip(trainable, used.tolist(), strict=True):
            if users:
                if parameter.grad is None:  # used elsewhere: this rank adds nothing, but takes part
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=self.process_group)
                parameter.grad /= self.ranks


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        result = train_side_by_side(NaiveDDP, group, tolerance=cfg.tolerance)
        # 5 parameters are used in each step, the 2 of the branch in some; one more call says which.
        assert result.calls == [6 if step % 3 == 0 else 8 for step in range(6)], result.calls
        record_results("lab_09_naive", result._asdict())


if __name__ == "__main__":
    run(main, Config())
