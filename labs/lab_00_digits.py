"""Ranks share 1,797 images, and together they know what one process knows.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_00_digits.py
Written by:  notebooks/00_start_here.ipynb
"""

import time
from dataclasses import dataclass

import psutil
import torch
import torch.distributed as dist
from lab_00_hello import share_of

from shared.runtime.errors import ParityError
from shared.runtime.group import process_group
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
    every = torch.cat([images.train_x, images.test_x])
    return (every * 16).round().long().squeeze(1)


def reference() -> list[int]:
    """What a single process finds: how many images there are, and how much ink."""
    images = all_images()
    return [len(images), int(images.sum())]


def main(cfg: Config) -> None:
    started = time.perf_counter()
    with process_group() as group:
        joined = time.perf_counter() - started
        mine = share_of(all_images(), group.rank, group.world_size)
        found = torch.tensor([len(mine), int(mine.sum())], device=group.device)
        print_in_rank_order(f"my share: {found[0]} images, ink {found[1]}")

        dist.all_reduce(found)
        print_in_rank_order(f"together: {found[0]} images, ink {found[1]}")
        if found.tolist() != reference():
            raise ParityError(f"together {found.tolist()}, but one process finds {reference()}")
        print_on_rank_0("One process finds the same.")

        memory = psutil.Process().memory_full_info()
        record_results(
            "lab_00_digits",
            {
                "rank": group.rank,
                "images": len(mine),
                "shown": mine[: cfg.shown].tolist(),
                "join_s": joined,
                "resident_mb": memory.rss / 2**20,
                "private_mb": memory.uss / 2**20,  # of these, what no other process shares
            },
        )


if __name__ == "__main__":
    run(main, Config())
