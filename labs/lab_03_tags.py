"""Messages by tag, and from whoever comes: for gloo alone. nccl reads no tag and needs to know the sender.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_03_tags.py
Written by:  notebooks/03_point_to_point.ipynb
"""

import torch
import torch.distributed as dist

WEIGHT, BIAS, REPORT = 1, 2, 3  # tags: any whole numbers that sender and receiver agree on


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
    dist.init_process_group("gloo")  # on a machine with GPUs as well
    rank, n = dist.get_rank(), dist.get_world_size()
    if n < 2:
        raise SystemExit("one rank has nobody to talk to: --nproc-per-node=2")
    by_tag(rank, n)
    senders = from_anyone(rank, n)
    if rank == 0:
        print("rank 1 took bias, first weight, the 9 without a tag, next weight")
        print(f"rank 0 has reports of {sorted(senders)}; nobody promises their order")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
