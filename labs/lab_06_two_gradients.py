"""Two gradients become one: their mean over the ranks is the gradient of the whole batch.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_06_two_gradients.py
Written by:  notebooks/06_data_parallel_by_hand.ipynb (edit it there)
"""

import torch
import torch.distributed as dist

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

SAMPLES = 4  # of each rank


def gradient_of(weight: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient of the mean squared error of ``x @ weight``: x (samples, 2), y (samples,), weight (2,)."""
    loss = (x @ weight - y).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    return gradient


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.linspace(0, 1, 2 * SAMPLES * ranks, dtype=torch.float64, device=device).view(-1, 2)
    y = x.sum(1)  # the batch, which all ranks know
    weight = torch.full((2,), 0.5 + rank, dtype=x.dtype, device=device)  # different on each rank

    dist.broadcast(weight, src=0)  # 1. all ranks start with rank 0's
    weight.requires_grad_()
    mine = slice(rank, None, ranks)  # 2. each sample is on one rank
    gradient = gradient_of(weight, x[mine], y[mine])
    print(f"rank {rank}: the gradient of my part is {[round(g, 3) for g in gradient.tolist()]}")
    average = gradient.clone()
    dist.all_reduce(average)  # 3. add up the ranks' gradients,
    average /= ranks  # and divide by the number of ranks

    whole = gradient_of(weight, x, y)
    rounding = 100 * torch.finfo(x.dtype).eps
    assert torch.allclose(average, whole, rtol=rounding, atol=rounding), "not that of the whole batch"
    if rank == 0:
        print(f"their mean is that of the whole batch: {[round(g, 3) for g in average.tolist()]}")
    dist.barrier()  # nobody leaves while another rank still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
