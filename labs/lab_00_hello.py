"""The first lab: ranks share 1,797 images, and together they know what one process would know.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_00_hello.py
Written by:  notebooks/00_start_here.ipynb
"""

import resource
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.runtime.errors import ParityError
from shared.runtime.group import pick_device, read_environment
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images


@dataclass(frozen=True)
class Config:
    shown: int = 8  # images per rank that the notebook draws


def all_images() -> torch.Tensor:
    """The digits as whole numbers 0..16, int64 (1797, 8, 8)."""
    images = load_images("digits")
    return (torch.cat([images.train_x, images.test_x]) * 16).round().long().squeeze(1)


def reference() -> list[int]:
    """What a single process finds: how many images there are, and how much ink."""
    images = all_images()
    return [len(images), int(images.sum())]


def main(cfg: Config) -> None:
    started = time.perf_counter()
    rank, local_rank, world_size = read_environment()  # torchrun has told each process who it is
    device = pick_device(local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # collectives of Python objects use the current GPU
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    joined = time.perf_counter() - started

    mine = all_images()[rank::world_size].to(device)  # every world_size-th image, beginning with my rank
    found = torch.stack([torch.tensor(len(mine), device=device), mine.sum()])
    print_in_rank_order(f"my share: {found[0]} images, ink {found[1]}")

    dist.all_reduce(found)  # adds up over all ranks; afterwards each rank holds the sum
    print_in_rank_order(f"together: {found[0]} images, ink {found[1]}")
    if found.tolist() != reference():
        raise ParityError(f"together {found.tolist()}, but one process finds {reference()}")
    print_on_rank_0("One process finds the same.")

    record_results(
        "lab_00_hello",
        {
            "rank": rank,
            "images": len(mine),
            "shown": mine[: cfg.shown].tolist(),
            "join_s": joined,
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        },
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main, Config())
