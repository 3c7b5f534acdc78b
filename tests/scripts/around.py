"""What the frames of the boxes "Find the bug" share: a group of ranks, and what each of them says."""

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

LONG = timedelta(seconds=300)  # bounds a hang that is not meant
SHORT = timedelta(seconds=2)  # for a wait that is known to be in vain
FOLDER = Path(sys.argv[1])  # of this play alone, the same one for all ranks
BROKEN = sys.argv[2] == "broken"


def box_is_left(rank: int) -> str:
    """The key that a rank sets in the store when it has come out of the box."""
    return f"rank {rank} has left the box"


def wait_for(*keys: str) -> None:
    """Wait until some rank has set each of these keys in the store."""
    dist.distributed_c10d._get_default_store().wait(list(keys), LONG)


@contextlib.contextmanager
def told_apart() -> Iterator[None]:
    """What a rank prints or raises inside of the block goes into the file of this rank.

    A rank stays until all have come out of the block, because others may still talk to it. Then it ends: the
    group may be of no more use, so it is not left in order.
    """
    torch.set_num_threads(1)
    rank = dist.get_rank()
    path = FOLDER / f"rank_{rank}.txt"
    with path.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        try:
            yield
        except Exception as error:
            print(f"rank {rank}: {type(error).__name__}: {error}")
    dist.distributed_c10d._get_default_store().set(box_is_left(rank), "")
    wait_for(*map(box_is_left, range(dist.get_world_size())))
    os._exit(0)
