"""One process hands tensors to another: by rank, by tag, and from whoever comes.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_03_messages.py
Written by:  notebooks/03_point_to_point.ipynb
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal

WEIGHT, BIAS, LETTER, REPORT = 1, 2, 3, 4  # tags: any whole numbers that sender and receiver agree on


@dataclass(frozen=True)
class Config:
    numel: int = 5
    letters: int = 20  # sent one after another with the same tag


def tensor_for(rank: int, tag: int, cfg: Config) -> torch.Tensor:
    """What rank 0 sends to ``rank`` under ``tag``: float32 (numel,), different for each pair."""
    return torch.arange(cfg.numel, dtype=torch.float32) + 100 * rank + 10 * tag


def assert_refused(call: Callable, text: str) -> None:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        assert text in str(error), error
    else:
        raise CourseError(f"was to be refused: {text}")


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        # nccl supports no tags, so this post goes by gloo even on a machine with GPUs.
        mail = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
        others = range(1, group.world_size)
        seen = {}

        # What is refused before anything is sent: oneself as receiver, and a tensor with gaps.
        assert_refused(lambda: dist.send(torch.ones(1), group.rank, group=mail), "should not be the same")
        neighbour, column = (group.rank + 1) % group.world_size, torch.ones(4, 4)[:, 0]
        assert_refused(lambda: dist.send(column, neighbour, group=mail), "has to be contiguous")

        # 1. Blocking. The receiver brings a tensor of the right shape and dtype; recv fills it.
        if group.rank == 0:
            for rank in others:
                dist.send(tensor_for(rank, 0, cfg), rank, group=mail)
        else:
            box = torch.empty(cfg.numel)
            sender = dist.recv(box, src=0, group=mail)
            assert sender == 0
            assert_equal("blocking", box, tensor_for(group.rank, 0, cfg), 0.0)

        # 2. Tags. Sent: weight, then bias. Taken: bias, then weight.
        if group.rank == 0:
            works = []
            for rank in others:
                for tag in (WEIGHT, BIAS):
                    works.append(dist.isend(tensor_for(rank, tag, cfg), rank, group=mail, tag=tag))
            for work in works:
                work.wait()
        else:
            for tag in (BIAS, WEIGHT):
                dist.recv(box, src=0, group=mail, tag=tag)
                assert_equal(f"tag {tag}", box, tensor_for(group.rank, tag, cfg), 0.0)

        # 3. The same tag: what was sent first is taken first.
        if group.rank == 0:
            works = [
                dist.isend(torch.tensor([number]), rank, group=mail, tag=LETTER)
                for number in range(cfg.letters)
                for rank in others
            ]
            for work in works:
                work.wait()
        else:
            number = torch.empty(1, dtype=torch.int64)
            seen["letters"] = []
            for _ in range(cfg.letters):
                dist.recv(number, src=0, group=mail, tag=LETTER)
                seen["letters"].append(number.item())
            assert seen["letters"] == list(range(cfg.letters)), seen["letters"]

        # 4. From anyone: src=None takes what comes, and recv returns who sent it.
        if group.rank == 0:
            report = torch.empty(1, dtype=torch.int64)
            seen["reports"] = {}
            for _ in others:
                sender = dist.recv(report, src=None, group=mail, tag=REPORT)
                seen["reports"][sender] = report.item()
            assert seen["reports"] == {rank: rank**2 for rank in others}, seen["reports"]
            print_in_rank_order(
                f"reports of {sorted(seen['reports'])} came, in an order that I did not choose"
            )
        else:
            dist.send(torch.tensor([group.rank**2]), 0, group=mail, tag=REPORT)
            print_in_rank_order(f"bias taken before weight; {cfg.letters} letters of one tag in order")
        record_results("lab_03_messages", seen)


if __name__ == "__main__":
    run(main, Config())
