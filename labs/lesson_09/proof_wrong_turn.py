"""Buckets launched as soon as they are full, out of turn: no error, and wrong gradients.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_09/proof_wrong_turn.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    numel: int = 4


def reference(ranks: int) -> list[float]:
    """The mean gradients of a and b: rank r has r + 1 for a, and ten times as much for b."""
    mean = (ranks + 1) / 2
    return [mean, 10 * mean]


def gradients(in_turn: bool, cfg: Config, group: Group) -> list[torch.Tensor]:
    """One backward over the parameters a and b, each a bucket; return their averaged gradients.

    Even ranks use a first and b second, odd ranks the other way round. Backward comes to what was used
    last first, so the ranks' buckets become full in different orders.
    """
    a = torch.ones(cfg.numel, device=group.device, requires_grad=True)
    b = torch.ones(cfg.numel, device=group.device, requires_grad=True)
    buckets = [b, a]  # the turn that all ranks know
    works = []

    def launch(parameter: torch.Tensor) -> None:
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    def hook(parameter: torch.Tensor) -> None:
        if not in_turn:
            launch(parameter)
            return
        while len(works) < len(buckets) and buckets[len(works)].grad is not None:
            launch(buckets[len(works)])

    for parameter in buckets:
        parameter.register_post_accumulate_grad_hook(hook)
    x = float(group.rank + 1)
    if group.rank % 2 == 0:
        loss = (a * x).sum() + (b * (10 * x)).sum()
    else:
        loss = (b * (10 * x)).sum() + (a * x).sum()
    loss.backward()
    for work in works:
        work.wait()
    return [a.grad / group.world_size, b.grad / group.world_size]


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        expected = reference(group.world_size)
        print_on_rank_0(f"expected: a {expected[0]:g}, b {expected[1]:g} on each rank")
        for in_turn in (False, True):
            means = gradients(in_turn, cfg, group)
            how = "in turn" if in_turn else "as soon as full"
            print_in_rank_order(f"{how}: a {means[0][0].item():g}, b {means[1][0].item():g}")
            try:
                for name, mean, value in zip("ab", means, expected, strict=True):
                    assert_equal(f"gradient of {name}", mean, torch.full_like(mean, value), 1e-6)
                right = True
            except ParityError:
                right = False
            if right != (in_turn or group.world_size == 1):
                raise CourseError(
                    f"{how}: the gradients are {'right' if right else 'wrong'}, unlike in this lab"
                )


if __name__ == "__main__":
    run(main, Config())
