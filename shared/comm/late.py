"""All-reduces whose result arrives only where somebody waits for it. Taught in lesson 09.

A small all-reduce is often done before its caller looks, so a forgotten ``wait`` goes unnoticed. Here it does
not: the tensor keeps this rank's own numbers until ``wait``, or the future that stands for it, is done.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

import torch
import torch.distributed as dist


class LateWork:
    """What ``all_reduce(..., async_op=True)`` returns: the tensor gets the result when it is waited for."""

    def __init__(self, work: dist.Work, result: torch.Tensor, tensor: torch.Tensor) -> None:
        self.work = work
        self.result = result
        self.tensor = tensor
        self.delivered = False

    @torch.no_grad()
    def _deliver(self) -> None:
        if not self.delivered:
            self.tensor.copy_(self.result)
            self.delivered = True

    def wait(self, *arguments: timedelta) -> bool:
        done = self.work.wait(*arguments)
        self._deliver()
        return done

    def is_completed(self) -> bool:
        done = self.work.is_completed()
        if done:
            self._deliver()
        return done

    def get_future(self) -> torch.futures.Future:
        def arrived(future: torch.futures.Future) -> list[torch.Tensor]:
            future.value()
            self._deliver()
            return [self.tensor]

        return self.work.get_future().then(arrived)


@contextmanager
def late_all_reduces() -> Iterator[list[LateWork]]:
    """Within it, ``dist.all_reduce(..., async_op=True)`` delivers late. Calls that block are as always.

    Yields the list of what was launched, which grows.
    """
    launched: list[LateWork] = []
    with patch.object(dist, "all_reduce", _late(dist.all_reduce, launched)):
        yield launched


def _late(all_reduce: Callable, launched: list[LateWork]) -> Callable:
    def late_all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if not async_op:
            return all_reduce(tensor, op, group)
        result = tensor.detach().clone()
        launched.append(LateWork(all_reduce(result, op, group, async_op=True), result, tensor))
        return launched[-1]

    return late_all_reduce
