"""Three ways to lose a gradient without an error, and the cure of each.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_24/proof_faults.py
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc

from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.run import run

FOUND = (2, 2)  # parameters with a gradient: of the front here, of the back there


def layer(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 4).double()


def forward(module: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    """Runs on the module's owner."""
    return module.local_value()(x)


def count(module: rpc.RRef, context_id: int) -> int:
    """How many of the module's parameters have a gradient in a context. Runs on the module's owner."""
    by_parameter = dist_autograd.get_gradients(context_id)
    return sum(parameter in by_parameter for parameter in module.local_value().parameters())


class Step:
    """A front here and a back there. Each method is a forward; ``gradients`` makes the rest of the step."""

    def __init__(self, owner: str) -> None:
        self.front = layer(1)
        self.back = rpc.remote(owner, layer, args=(2,))
        self.x = torch.ones(3, 4, dtype=torch.float64)

    def gradients(self, before: torch.Tensor | None, inside: Callable | None = None) -> tuple[int, int]:
        """How many parameters get a gradient here and there, from an output made before or in the context."""
        with dist_autograd.context() as context_id:
            y = before if inside is None else inside()
            dist_autograd.backward(context_id, [y.square().mean()])
            here = count(rpc.RRef(self.front), context_id)
            there = rpc.rpc_sync(self.back.owner(), count, args=(self.back, context_id))
        return here, there

    def by_call(self) -> torch.Tensor:
        return rpc.rpc_sync(self.back.owner(), forward, args=(self.back, self.front(self.x)))

    def by_copy(self) -> torch.Tensor:
        return self.back.to_here()(self.front(self.x))

    def by_reference(self) -> torch.Tensor:
        self.back = rpc.remote(self.back.owner(), layer, args=(2,))  # nobody has called it yet
        return self.back.rpc_async().forward(self.front(self.x)).wait()

    def by_owner(self) -> torch.Tensor:
        self.back = rpc.remote(self.back.owner(), layer, args=(2,))
        future = rpc.rpc_async(self.back.owner(), forward, args=(self.back, self.front(self.x)))
        return future.wait()


def main() -> None:
    with process_group(smallest=2) as group, rpc_workers(group) as workers:
        if group.rank == 0:
            step = Step(workers[-1])
            rows = {
                "forward before the context": (step.gradients(step.by_call()), (0, 0)),
                "    cured: forward inside it": (step.gradients(None, step.by_call), FOUND),
                "rref.to_here()(x)": (step.gradients(None, step.by_copy), (2, 0)),
                "    cured: call the owner": (step.gradients(None, step.by_call), FOUND),
                "first rref.rpc_async().forward(x)": (step.gradients(None, step.by_reference), (0, 0)),
                "    cured: rpc.rpc_async to the owner": (step.gradients(None, step.by_owner), FOUND),
            }
            for what, (found, expected) in rows.items():
                if found != expected:
                    raise CourseError(f"{what}: gradients here and there {found}, expected {expected}")
                print(f"{what:37} gradients of {found[0]} parameters here, {found[1]} there")
        dist.barrier()


if __name__ == "__main__":
    run(main)
