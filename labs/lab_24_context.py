"""One backward and one optimizer through two processes: a front here, a head there, equal to one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_24_context.py
Written by:  notebooks/24_distributed_autograd.ipynb (edit it there)
"""

import logging
import os
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

STEPS, BATCH, RATE = 20, 48, 0.5


def build(inputs: int, outputs: int, seed: int) -> nn.Module:
    """A float64 layer: (batch, inputs) to (batch, outputs)."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh()).double()


def forward(module: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    """Run a module where it is. To be called on the module's owner."""
    return module.local_value()(x)


def gradients(module: rpc.RRef, context_id: int) -> list[torch.Tensor]:
    """The gradients of a module's parameters in this context. To be called on the module's owner."""
    by_parameter = dist_autograd.get_gradients(context_id)
    return [by_parameter[parameter] for parameter in module.local_value().parameters()]


def parameters(module: rpc.RRef) -> list[rpc.RRef]:
    """References to a module's parameters. To be called on the module's owner."""
    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


def step_there(front: nn.Module, head: rpc.RRef, x: torch.Tensor, y: torch.Tensor, optimizer: object) -> list:
    """A step of the front here and the head there. Returns the gradients of both, in one list."""
    with dist_autograd.context() as context_id:
        scores = rpc.rpc_sync(head.owner(), forward, args=(head, front(x)))
        loss = F.cross_entropy(scores, y)
        dist_autograd.backward(context_id, [loss])  # crosses to the head's process and back
        ours = gradients(rpc.RRef(front), context_id)
        theirs = rpc.rpc_sync(head.owner(), gradients, args=(head, context_id))  # before the context ends
        optimizer.step(context_id)  # on each owner
    return ours + theirs


def step_here(model: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: torch.optim.Optimizer) -> list:
    """The same in one process."""
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return [parameter.grad for parameter in model.parameters()]


def assert_close(what: str, ours: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12), f"{what} are not those of one process"


def compare(there: str) -> None:
    """Train front and head apart, and together in one process, on the same batches."""
    front = build(64, 16, seed=1)
    head = rpc.remote(there, build, args=(16, 10, 2))
    references = parameters(rpc.RRef(front)) + rpc.rpc_sync(there, parameters, args=(head,))
    optimizer = DistributedOptimizer(torch.optim.SGD, references, lr=RATE)
    alone = nn.Sequential(build(64, 16, seed=1), build(16, 10, seed=2))
    reference = torch.optim.SGD(alone.parameters(), lr=RATE)
    for _ in range(STEPS):
        x = torch.rand(BATCH, 64, dtype=torch.float64)
        y = torch.randint(10, (BATCH,))
        ours = step_there(front, head, x, y, optimizer)
        assert_close("gradients", ours, step_here(alone, x, y, reference))
        assert front[0].weight.grad is None  # the context has the gradients
    trained = [parameter.to_here() for parameter in references]
    assert_close("parameters", trained, list(alone.parameters()))
    print(f"{STEPS} steps: the gradients of 2 parameters here and 2 on {there} are those of one process")
    print("and so are the parameters after the last step")


def hide_one_warning() -> None:
    """TorchScript in DistributedOptimizer is deprecated: torch says it past all filters of ``warnings``."""
    logging.captureWarnings(True)
    others = logging.StreamHandler()
    others.addFilter(lambda record: "TorchScript" not in record.getMessage())
    logging.getLogger("py.warnings").addHandler(others)


def main() -> None:
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:  # all on one machine
        os.environ.setdefault("TP_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    warnings.filterwarnings("ignore", "You are using a Backend")  # torch's own, pytorch/pytorch#149393
    hide_one_warning()
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        compare(f"worker{world_size - 1}")
    rpc.shutdown()


if __name__ == "__main__":
    main()
