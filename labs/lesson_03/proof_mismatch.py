"""What is refused, and what passes: sender and receiver disagree about shape, dtype or size.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_03/proof_mismatch.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    too_large: int = 1000  # numbers that rank 0 sends where rank 1 has room for few
    room: int = 10


# What rank 0 sends, the buffer of rank 1, and what is in that buffer afterwards.
CASES = {
    "another shape": (
        torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        torch.zeros(3, 2),
        [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
    ),
    "another dtype": (torch.tensor([1.0, 2.0]), torch.zeros(2, dtype=torch.int32), [1065353216, 1073741824]),
    "a larger buffer": (torch.tensor([1.0, 2.0]), torch.zeros(4), [1.0, 2.0, 0.0, 0.0]),
}


def assert_refused(what: str, call: Callable, text: str) -> None:
    """torch raises before anything is sent."""
    try:
        call()
    except (ValueError, RuntimeError) as error:
        assert text in str(error), error
        if dist.get_rank() == 1:
            print(f"[rank 1] {what}: {type(error).__name__}, {text!r}")
    else:
        raise CourseError(f"{what} should have been refused")


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        mail = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
        neighbour = (group.rank + 1) % group.world_size
        column = torch.ones(4, 4)[:, 0]  # its numbers do not lie side by side
        assert_refused(
            "to myself", lambda: dist.send(torch.ones(1), group.rank, mail), "should not be the same"
        )
        assert_refused("a column", lambda: dist.send(column, neighbour, mail), "has to be contiguous")
        for what, (sent, buffer, expected) in CASES.items():
            if group.rank == 0:
                dist.send(sent, 1, group=mail)
            elif group.rank == 1:
                dist.recv(buffer, 0, group=mail)
                assert buffer.tolist() == expected, (what, buffer)
                print(f"[rank 1] {what}: no error; {sent.tolist()} came as {buffer.tolist()}")
        if group.rank == 0:
            dist.send(torch.ones(cfg.too_large), 1, group=mail)
        elif group.rank == 1:
            print(f"[rank 1] a smaller buffer: {cfg.too_large} numbers arrive; the buffer holds {cfg.room}")
            dist.recv(torch.zeros(cfg.room), 0, group=mail)  # no exception: the process is aborted here
            raise CourseError("a message larger than its buffer should have been noticed")


if __name__ == "__main__":
    run(main, Config())
