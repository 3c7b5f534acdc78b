"""One process hands tensors to another: to a rank, by a tag, in order, and from whoever comes.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_03_messages.py
Written by:  notebooks/03_point_to_point.ipynb
"""

import torch
import torch.distributed as dist

WEIGHT, BIAS, LETTER, REPORT = 1, 2, 3, 4  # tags: any whole numbers that sender and receiver agree on
LETTERS = 20


def to_each_rank(rank: int, n: int) -> None:
    """Rank 0 sends a tensor to each other rank. The receiver brings one of the same shape and dtype."""
    if rank == 0:
        for receiver in range(1, n):
            dist.send(torch.full((3,), float(receiver)), dst=receiver)
    else:
        box = torch.empty(3)
        sender = dist.recv(box, src=0)
        assert sender == 0
        assert box.tolist() == [rank, rank, rank]


def by_tag(rank: int, n: int) -> None:
    """Rank 0 sends rank 1 a weight, a bias and another weight; another rank sends it a 9 without a tag.

    Rank 1 takes them in another order. A message that was not asked for stays pending.
    """
    greeter = n - 1 if n > 2 else 0
    works = []
    if rank == 0:
        works.append(dist.isend(torch.tensor([1.0]), dst=1, tag=WEIGHT))
        works.append(dist.isend(torch.tensor([2.0]), dst=1, tag=BIAS))
        works.append(dist.isend(torch.tensor([3.0]), dst=1, tag=WEIGHT))
    if rank == greeter:
        works.append(dist.isend(torch.tensor([9.0]), dst=1))
    if rank == 1:
        taken = []
        for source, tag in ((0, BIAS), (0, WEIGHT), (None, 0), (0, WEIGHT)):  # None: from anyone
            box = torch.empty(1)
            sender = dist.recv(box, src=source, tag=tag)
            taken.append((sender, box.item()))
        assert taken == [(0, 2.0), (0, 1.0), (greeter, 9.0), (0, 3.0)], taken
    for work in works:
        work.wait()


def in_order(rank: int, n: int) -> None:
    """Messages of one sender with the same tag are taken in the order in which they were sent."""
    if rank == 0:
        for letter in range(LETTERS):
            for receiver in range(1, n):
                dist.send(torch.tensor([letter]), dst=receiver, tag=LETTER)
    else:
        box = torch.empty(1, dtype=torch.int64)
        for letter in range(LETTERS):
            dist.recv(box, src=0, tag=LETTER)
            assert box.item() == letter


def from_anyone(rank: int, n: int) -> list[int]:
    """All report to rank 0, which takes what comes first. Return the senders in the order of arrival."""
    senders = []
    if rank > 0:
        dist.send(torch.tensor([rank**2]), dst=0, tag=REPORT)
    else:
        box = torch.empty(1, dtype=torch.int64)
        for _ in range(1, n):
            sender = dist.recv(box, src=None, tag=REPORT)
            assert box.item() == sender**2
            senders.append(sender)
    return senders


def main() -> None:
    dist.init_process_group("gloo")  # on a machine with GPUs as well: nccl supports no tags
    rank, n = dist.get_rank(), dist.get_world_size()
    to_each_rank(rank, n)
    by_tag(rank, n)
    in_order(rank, n)
    senders = from_anyone(rank, n)
    if rank == 0:
        print("rank 0 sent a tensor to each other rank")
        print("rank 1 took bias, first weight, the 9 without a tag, next weight")
        print(f"{LETTERS} messages with one tag came in order")
        print(f"rank 0 has reports of {sorted(senders)}; nobody promises their order")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
