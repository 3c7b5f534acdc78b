"""Tags, and messages from anyone: for gloo alone. nccl reads no tag and needs to know the sender.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_03_tags.py
Written by:  notebooks/03_point_to_point.ipynb (edit it there)
"""

import torch
import torch.distributed as dist

WEIGHT, BIAS = 1, 2  # tags: any whole numbers that sender and receiver agree on


def main() -> None:
    dist.init_process_group("gloo")  # on a machine with GPUs as well
    rank, n = dist.get_rank(), dist.get_world_size()
    if n < 2:
        raise SystemExit("one rank has no partner: --nproc-per-node=2")
    buffer = torch.empty(1)
    if rank == 0:
        weight = dist.isend(torch.tensor([1.0]), dst=1, tag=WEIGHT)
        bias = dist.isend(torch.tensor([2.0]), dst=1, tag=BIAS)
        weight.wait()
        bias.wait()
        senders = []
        for _ in range(1, n):
            senders.append(dist.recv(buffer))  # from whoever comes first
        print(f"rank 1 took the bias first; rank 0 heard from ranks {sorted(senders)}, in any order")
    if rank == 1:
        for tag, value in ((BIAS, 2.0), (WEIGHT, 1.0)):  # not in the order of sending
            dist.recv(buffer, src=0, tag=tag)
            assert buffer.item() == value, f"tag {tag} brought {buffer.item()}"
    if rank > 0:
        dist.send(torch.ones(1), dst=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
