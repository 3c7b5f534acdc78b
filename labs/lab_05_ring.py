"""A ring all-reduce, equal to torch's.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_05_ring.py
Written by:  notebooks/05_ring_all_reduce.ipynb (edit it there)
"""

import torch
import torch.distributed as dist

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


def send_right(outgoing: torch.Tensor, incoming: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Send ``outgoing`` to the right neighbour while receiving ``incoming`` from the left; wait for both."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    send = dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank + 1) % n)
    receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % n)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def ring_all_reduce(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Replace ``x`` on each of the n ranks of the group by the sum over them.

    Args:
        x: one-dimensional and contiguous, of the same shape and dtype on each rank.

    Each rank sends 2 (n - 1) chunks of 1 / n of ``x`` to its right neighbour.
    Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.tensor_split(n)
    # Reduce-scatter: pass on what I have summed so far. At the end chunk rank + 1 is complete here.
    for step in range(n - 1):
        outgoing, target = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(target)
        send_right(outgoing, incoming, group)
        target += incoming
    # All-gather: pass on what is complete.
    for step in range(n - 1):
        outgoing, target = chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]
        send_right(outgoing, target, group)


def main() -> None:
    device = setup()
    torch.manual_seed(dist.get_rank())  # different numbers on each rank

    x = torch.randn(1_000_003, dtype=torch.float64, device=device)  # a prime number: the chunks are uneven
    expected = x.clone()
    dist.all_reduce(expected)
    ring_all_reduce(x)
    off = (x - expected).abs().max().item()
    rounding = 1000 * torch.finfo(x.dtype).eps  # sums in another order round differently
    assert off < rounding, f"the ring is off by {off:.1e}"
    of_rank_0 = x.clone()
    dist.broadcast(of_rank_0, src=0)
    assert torch.equal(x, of_rank_0), "the ranks hold different bits"

    if dist.get_rank() == 0:
        print(f"{len(x):,} numbers over {dist.get_world_size()} ranks: the ring equals dist.all_reduce")
        print("all ranks hold the same bits")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
