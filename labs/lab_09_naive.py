"""A DDP by hand, first step: after backward, one all-reduce for each parameter.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_09_naive.py
Written by:  notebooks/09_ddp_inside.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


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
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), group=process_group, group_src=0)

    def forward(self, *inputs, **kwargs):
        for buffer in self.module.buffers():
            # .data: a backward that is still to come does not mind that a buffer has changed.
            dist.broadcast(buffer.data, group=self.process_group, group_src=0)
        return self.module(*inputs, **kwargs)

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. One that no rank has stays None."""
        trainable = [p for p in self.module.parameters() if p.requires_grad]
        used = torch.tensor([float(p.grad is not None) for p in trainable], device=trainable[0].device)
        dist.all_reduce(used, group=self.process_group)  # on how many ranks each parameter was used
        for parameter, users in zip(trainable, used.tolist(), strict=True):
            if users == 0:
                continue
            if parameter.grad is None:  # used elsewhere: this rank adds nothing, but takes part
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self.process_group)
            parameter.grad /= self.ranks


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # a different model on each rank, on purpose
    ddp = NaiveDDP(nn.Linear(4, 1, dtype=torch.float64).to(device))
    x = torch.arange(ranks * 4, dtype=torch.float64, device=device).view(ranks, 4)  # the global batch
    ddp(x[rank : rank + 1]).sum().backward()
    own = ddp.module.weight.grad.flatten().tolist()
    ddp.reduce_gradients()
    mean = ddp.module.weight.grad.flatten()

    everyones = [None] * ranks
    dist.all_gather_object(everyones, own)
    if rank == 0:
        for r, gradient in enumerate(everyones):
            print(f"rank {r}: its own gradient is {gradient}")
        print(f"after reduce_gradients: {mean.tolist()} on each rank")
    assert torch.allclose(mean, x.mean(0), rtol=0, atol=1e-12), "the gradient of the whole batch"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
