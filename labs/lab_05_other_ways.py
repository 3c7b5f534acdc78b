"""Four other all-reduces: through rank 0, a ring of whole tensors, and by partners at growing distances.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_05_other_ways.py
Written by:  notebooks/05_ring_all_reduce.ipynb (edit it there)
"""

import os
import socket
import sys

import torch
import torch.distributed as dist


def exchange(
    outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int, group: dist.ProcessGroup | None
) -> None:
    """Send to one rank of the group while receiving from another; wait for both."""
    send = dist.P2POp(dist.isend, outgoing, group=group, group_peer=to)
    receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=source)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def gather_and_broadcast(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """The first rank receives all tensors, adds them up and sends the sum to everyone."""
    if dist.get_rank(group) > 0:
        dist.send(x, group=group, group_dst=0)
        dist.recv(x, group=group, group_src=0)
        return
    incoming = torch.empty_like(x)
    others = range(1, dist.get_world_size(group))
    for other in others:
        dist.recv(incoming, group=group, group_src=other)
        x += incoming
    for other in others:
        dist.send(x, group=group, group_dst=other)


def whole_tensor_ring(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """A ring in name only: whole tensors go round n - 1 times, each rank adds what passes by.

    It is the ring of "Writing Distributed Applications with PyTorch" (dist_tuto), function ``allreduce``.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    passing = x.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        exchange(passing, (rank + 1) % n, incoming, (rank - 1) % n, group)
        x += incoming
        passing = incoming


def recursive_doubling(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Exchange whole tensors with partners 1, 2, 4, ... away: log2(n) rounds; n is a power of 2."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    distance = 1
    while distance < n:
        partner = rank ^ distance
        incoming = torch.empty_like(x)
        exchange(x, partner, incoming, partner, group)
        x += incoming
        distance *= 2


def halving_and_doubling(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Reduce-scatter with partners n / 2, n / 4, ... away, then all-gather the way back.

    The bytes of a ring in 2 log2(n) messages. ``x`` is flat, n is a power of 2 and divides its length.
    Rabenseifner's algorithm: Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    mine = x
    steps = []
    distance = n // 2
    while distance > 0:
        partner = rank ^ distance
        lower, upper = mine.chunk(2)
        mine, theirs = (upper, lower) if rank & distance else (lower, upper)
        incoming = torch.empty_like(mine)
        exchange(theirs, partner, incoming, partner, group)
        mine += incoming
        steps.append((partner, mine, theirs))
        distance //= 2
    for partner, mine, theirs in reversed(steps):
        exchange(mine, partner, theirs, partner, group)


WAYS = {
    "gather and broadcast": gather_and_broadcast,
    "whole-tensor ring": whole_tensor_ring,
    "recursive doubling": recursive_doubling,
    "halving and doubling": halving_and_doubling,
}


def works_with(way: str, n: int) -> bool:
    """Whether n ranks can do it: with partners, as it stands here, n must be a power of 2."""
    return "doubling" not in way or n & (n - 1) == 0


def setup() -> torch.device:
    """Join the group that the launcher describes; return this rank's device: a GPU of its own, or the CPU.

    The CPU is for jobs without a GPU, and for RANK_BY_RANK_DEVICE=cpu. A job with too few GPUs ends here.
    """
    device = torch.device("cpu")
    gpu = "none"
    if torch.cuda.device_count() > 0 and os.environ.get("RANK_BY_RANK_DEVICE") != "cpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    store, rank, world_size = next(dist.rendezvous("env://"))
    store.set(f"GPU of rank {rank}", gpu)  # all ranks must choose the same backend
    gpus = set(store.multi_get([f"GPU of rank {other}" for other in range(world_size)])) - {b"none"}
    if 0 < len(gpus) < world_size:
        mine = f"rank {rank} on {socket.gethostname()} has {device}"
        ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
        sys.exit(f"{world_size} ranks, {len(gpus)} GPUs ({mine}): {ways}")
    backend = "nccl" if gpus else "gloo"
    bound = device if gpus else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=bound)
    if rank == 0:
        print(f"{world_size} ranks on {device.type} with {backend}")
    return device


def main() -> None:
    device = setup()
    rank, n = dist.get_rank(), dist.get_world_size()
    for way, all_reduce in WAYS.items():
        if works_with(way, n):
            x = torch.arange(1000, device=device) * (rank + 1)
            expected = x.clone()
            dist.all_reduce(expected)
            all_reduce(x)
            assert torch.equal(x, expected), f"{way}: {x[:4].tolist()}... is not {expected[:4].tolist()}..."
            if rank == 0:
                print(f"{way}, {n} ranks: the sum is right")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
