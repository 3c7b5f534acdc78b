"""One process hands tensors to another: to each rank, in order, and all ranks at once to their neighbours.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_03_messages.py
Written by:  notebooks/03_point_to_point.ipynb (edit it there)
"""

import torch
import torch.distributed as dist

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

LETTERS = 5


def to_each_rank(rank: int, n: int, device: torch.device) -> None:
    """Rank 0 sends a tensor to each other rank. The receiver's buffer has the same shape and dtype."""
    if rank == 0:
        for receiver in range(1, n):
            dist.send(torch.full((3,), float(receiver), device=device), dst=receiver)
    else:
        buffer = torch.empty(3, device=device)
        dist.recv(buffer, src=0)
        assert buffer.tolist() == [rank, rank, rank], f"rank {rank} received {buffer.tolist()}"


def in_order(rank: int, n: int, device: torch.device) -> None:
    """Messages of one sender are taken in the order in which they were sent."""
    if rank == 0:
        for letter in range(LETTERS):
            for receiver in range(1, n):
                dist.send(torch.tensor([letter], device=device), dst=receiver)
    else:
        buffer = torch.empty(1, dtype=torch.int64, device=device)
        for letter in range(LETTERS):
            dist.recv(buffer, src=0)
            assert buffer.item() == letter, f"rank {rank} received {buffer.item()}"


def exchange(rank: int, n: int, device: torch.device) -> None:
    """Each rank sends to its right neighbour and receives from its left one, both in one batch."""
    right, left = (rank + 1) % n, (rank - 1) % n
    mine = torch.full((3,), float(rank), device=device)
    buffer = torch.empty(3, device=device)
    operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, buffer, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert buffer.tolist() == [left, left, left], f"rank {rank} received {buffer.tolist()}"


def exchange_in_a_group(rank: int, n: int, device: torch.device) -> None:
    """The last two ranks exchange tensors. Within their group they are ranks 0 and 1."""
    pair = dist.new_group([n - 2, n - 1])  # each rank of the job calls it, members or not
    if rank < n - 2:
        return
    me = dist.get_rank(pair)
    outgoing = torch.full((3,), float(rank), device=device)
    incoming = torch.empty(3, device=device)
    operations = [
        dist.P2POp(dist.isend, outgoing, group=pair, group_peer=1 - me),
        dist.P2POp(dist.irecv, incoming, group=pair, group_peer=1 - me),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    other = dist.get_global_rank(pair, 1 - me)
    assert incoming.tolist() == [other, other, other], f"rank {rank} of the group: {incoming.tolist()}"


def main() -> None:
    device = setup()
    rank, n = dist.get_rank(), dist.get_world_size()
    if n < 2:
        raise SystemExit("one rank has no partner: --nproc-per-node=2")
    to_each_rank(rank, n, device)
    in_order(rank, n, device)
    exchange(rank, n, device)
    exchange_in_a_group(rank, n, device)
    dist.barrier()
    if rank == 0:
        print("rank 0 sent a tensor to each other rank")
        print(f"{LETTERS} messages of one sender came in order")
        print("each rank has its left neighbour's tensor")
        print(f"ranks {n - 2} and {n - 1} exchanged tensors as ranks 0 and 1 of their group")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
