"""A step of FSDP by hand: each of two units is gathered, used and dropped, forward and backward.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_life.py
Written by:  notebooks/19_fsdp.ipynb (edit it there)
"""

import torch
import torch.distributed as dist

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


def gathered(shard: torch.Tensor) -> torch.Tensor:
    """The whole weight, from the shards of all ranks: its rows are divided."""
    whole = shard.new_empty(dist.get_world_size() * len(shard), shard.shape[1])
    dist.all_gather_into_tensor(whole, shard)
    return whole


def reduced(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the mean gradient of all ranks."""
    rows = gradient.new_empty(len(gradient) // dist.get_world_size(), gradient.shape[1])
    dist.reduce_scatter_tensor(rows, gradient, op=dist.ReduceOp.AVG)
    return rows


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # on all ranks: the same weights, the same batch
    width = 2 * ranks
    weights = torch.randn(2, width, width, dtype=torch.float64, device=device)
    batch = torch.randn(ranks, 3, width, dtype=torch.float64, device=device)
    shards = [weight.chunk(ranks)[rank].clone() for weight in weights]  # all that a rank keeps

    x = batch[rank]  # its own rows
    inputs = []
    for shard in shards:  # the forward pass
        whole = gathered(shard)
        inputs.append(x)
        x = x @ whole.T
        whole = None  # dropped: its memory is free again
    grad_x = x / x.numel()  # the loss is half the mean square of x

    gradients = []
    for shard, given in zip(reversed(shards), reversed(inputs), strict=True):  # the backward pass
        whole = gathered(shard)
        grad_whole = grad_x.T @ given
        grad_x = grad_x @ whole
        whole = None
        gradients.insert(0, reduced(grad_whole))
        grad_whole = None
    for shard, gradient in zip(shards, gradients, strict=True):
        shard -= 0.1 * gradient  # the optimizer has shards alone

    weights.requires_grad_()
    (batch @ weights[0].T @ weights[1].T).square().mean().div(2).backward()  # one process, all rows
    expected = (weights.detach() - 0.1 * weights.grad).chunk(ranks, dim=1)[rank]
    assert torch.allclose(torch.stack(shards), expected, rtol=0, atol=1e-12), f"rank {rank}: another weight"
    if rank == 0:
        print(f"a rank keeps {len(shards[0])} of {width} rows of each weight; a step as in one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
