"""Seven ways to miss a gradient that should have crossed processes. Three of them raise nothing.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_24_faults.py
Written by:  notebooks/24_distributed_autograd.ipynb (edit it there)
"""

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc

from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    timeout_s: float = 3.0  # of a call, and of each wait inside backward; the default is 60


def layer(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 4).double()


def forward(module: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    """Runs on the module's owner."""
    return module.local_value()(x)


def gradients(module: rpc.RRef, context_id: int) -> int:
    """How many of the module's parameters have a gradient in a context. Runs on the module's owner."""
    by_parameter = dist_autograd.get_gradients(context_id)
    return sum(parameter in by_parameter for parameter in module.local_value().parameters())


def plain_gradients(module: rpc.RRef) -> int:
    """How many of the module's parameters have a ``.grad``. Runs on the module's owner."""
    return sum(parameter.grad is not None for parameter in module.local_value().parameters())


class Faults:
    """Each method makes one mistake and returns what came of it. The back lives on another worker."""

    def __init__(self, owner: str) -> None:
        self.front = layer(1)
        self.back = rpc.remote(owner, layer, args=(2,))
        self.x = torch.ones(3, 4, dtype=torch.float64)

    def loss(self) -> torch.Tensor:
        y = rpc.rpc_sync(self.back.owner(), forward, args=(self.back, self.front(self.x)))
        return y.square().mean()

    def heard(self, call: Callable, expected: str) -> str:
        """The first line of the error that ``call`` must raise."""
        try:
            call()
        except RuntimeError as error:
            if expected not in str(error):
                raise
            return f"RuntimeError: ... {expected}"
        raise CourseError(f"an error was expected: {expected}")

    def gradients_after_the_context(self) -> str:
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [self.loss()])
        return self.heard(lambda: dist_autograd.get_gradients(context_id), "Could not find autograd context")

    def backward_after_the_context(self) -> str:
        with dist_autograd.context() as context_id:
            loss = self.loss()
        return self.heard(
            lambda: dist_autograd.backward(context_id, [loss]), "Could not find autograd context"
        )

    def loss_backward_in_a_context(self) -> str:
        with dist_autograd.context():
            return self.heard(self.loss().backward, "INTERNAL ASSERT FAILED")

    def a_call_that_the_loss_does_not_use(self) -> str:
        with dist_autograd.context() as context_id:
            loss = self.loss()
            _ = self.loss()
            return self.heard(
                lambda: dist_autograd.backward(context_id, [loss]), "RPC ran for more than set timeout"
            )

    def forward_without_a_context(self) -> str:
        loss = self.loss()
        loss.backward()
        here = sum(parameter.grad is not None for parameter in self.front.parameters())
        there = rpc.rpc_sync(self.back.owner(), plain_gradients, args=(self.back,))
        if not loss.requires_grad or (here, there) != (0, 0):
            raise CourseError(f"requires_grad {loss.requires_grad}, gradients here {here} and there {there}")
        return f"no error, loss.requires_grad is True; parameters with a gradient: {here} here, {there} there"

    def a_copy_instead_of_the_module(self) -> str:
        with dist_autograd.context() as context_id:
            copy = self.back.to_here()
            dist_autograd.backward(context_id, [copy(self.front(self.x)).square().mean()])
            here = len(dist_autograd.get_gradients(context_id))
            there = rpc.rpc_sync(self.back.owner(), gradients, args=(self.back, context_id))
        if (here, there) != (4, 0):
            raise CourseError(f"gradients here and there: {here}, {there}")
        return f"no error; parameters with a gradient: {here} here, the copy's with them, {there} there"

    def the_first_async_call_of_a_reference(self) -> str:
        """Its method is looked up first, and a thread that has no context makes the call."""
        counts = []
        for how in (self.through_the_reference, self.through_the_owner):
            fresh = rpc.remote(self.back.owner(), layer, args=(2,))  # nobody has called it yet
            with dist_autograd.context() as context_id:
                y = how(fresh, self.front(self.x)).wait()
                dist_autograd.backward(context_id, [y.square().mean()])
                gradients_here = dist_autograd.get_gradients(context_id)
                here = sum(parameter in gradients_here for parameter in self.front.parameters())
                counts.append((here, rpc.rpc_sync(fresh.owner(), gradients, args=(fresh, context_id))))
        if counts != [(0, 0), (2, 2)]:
            raise CourseError(f"gradients here and there: {counts[0]}, with rpc.rpc_async {counts[1]}")
        return "no error; parameters with a gradient: 0 here, 0 there; with rpc.rpc_async 2 here, 2 there"

    def through_the_reference(self, module: rpc.RRef, x: torch.Tensor) -> torch.futures.Future:
        return module.rpc_async().forward(x)

    def through_the_owner(self, module: rpc.RRef, x: torch.Tensor) -> torch.futures.Future:
        return rpc.rpc_async(module.owner(), forward, args=(module, x))


def main(cfg: Config) -> None:
    with (
        process_group(smallest=2) as group,
        rpc_workers(group, timeout_s=cfg.timeout_s) as workers,
        redirect_stderr(io.StringIO()),  # a worker writes the traceback of what fails on it
    ):
        dist.barrier()
        if group.rank == 0:
            faults = Faults(workers[-1])
            for fault in (
                faults.gradients_after_the_context,
                faults.backward_after_the_context,
                faults.loss_backward_in_a_context,
                faults.a_call_that_the_loss_does_not_use,
                faults.forward_without_a_context,
                faults.a_copy_instead_of_the_module,
                faults.the_first_async_call_of_a_reference,
            ):
                what = fault.__name__.replace("_", " ").replace("loss backward", "loss.backward()")
                print(f"{what}\n    {fault()}")
        dist.barrier()


if __name__ == "__main__":
    run(main, Config())
