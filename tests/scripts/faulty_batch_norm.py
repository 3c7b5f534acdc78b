"""The batch norm of lesson 10 with a fault, named by the first argument, in the lab that compares it."""

import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from shared.lesson_10 import sync_batch_norm
from shared.runtime.run import run

LAB = Path(__file__).resolve().parents[2] / "labs" / "lab_10_sync_batch_norm.py"
NORMALIZE = sync_batch_norm._Normalize


def biased(self, x: torch.Tensor) -> torch.Tensor:
    out, mean, var, _ = NORMALIZE.apply(x, self.weight, self.bias, self.eps, self.group)
    with torch.no_grad():
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)
    return out


def talkative(self, x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(torch.zeros(1), group=self.group)
    return FORWARD(self, x)


FORWARD = sync_batch_norm.SyncBatchNorm.forward
lab = runpy.run_path(str(LAB))
if sys.argv[1] == "local gradient":

    def backward(ctx, grad, *others):
        """The sums stay those of this rank."""
        current = dist.all_reduce
        dist.all_reduce = lambda tensor, group=None: current(tensor.clone(), group=group)
        try:
            return BACKWARD(ctx, grad, *others)
        finally:
            dist.all_reduce = current

    BACKWARD, NORMALIZE.backward = NORMALIZE.backward, staticmethod(backward)
else:
    faults = {"biased": biased, "talkative": talkative, "nothing": FORWARD}
    sync_batch_norm.SyncBatchNorm.forward = faults[sys.argv[1]]

if __name__ == "__main__":
    run(lab["main"], lab["Config"]())
