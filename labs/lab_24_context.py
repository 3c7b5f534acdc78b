"""One backward through two processes: a front here and a head there, equal to one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_24_context.py
Written by:  notebooks/24_distributed_autograd.ipynb (edit it there)
"""

import os
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc


def build(inputs: int, outputs: int, seed: int) -> nn.Module:
    """A float64 layer: (batch, inputs) to (batch, outputs)."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh()).double()


def forward(module: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    """Run a module where it is. To be called on the module's owner."""
    return module.local_value()(x)


def gradients(module: rpc.RRef, context_id: int) -> dict[str, torch.Tensor]:
    """{name of the parameter: its gradient in this context}. To be called on the module's owner."""
    by_parameter = dist_autograd.get_gradients(context_id)
    return {name: by_parameter[parameter] for name, parameter in module.local_value().named_parameters()}


def backward(context_id: int, front: nn.Module, head: rpc.RRef, x: torch.Tensor, y: torch.Tensor) -> float:
    """Forward and backward through the front here and the head there; return the mean loss."""
    scores = rpc.rpc_sync(head.owner(), forward, args=(head, front(x)))
    loss = F.cross_entropy(scores, y)
    dist_autograd.backward(context_id, [loss])  # crosses to the head's process and back
    return loss.item()


def compare(there: str) -> None:
    """The gradients of front and head must be those of one process, for one batch."""
    front = build(64, 16, seed=1)
    head = rpc.remote(there, build, args=(16, 10, 2))
    x = torch.rand(48, 64, dtype=torch.float64)
    y = torch.randint(10, (48,))
    with dist_autograd.context() as context_id:
        loss = backward(context_id, front, head, x, y)
        ours = gradients(rpc.RRef(front), context_id)
        theirs = rpc.rpc_sync(there, gradients, args=(head, context_id))  # before the context ends

    alone = nn.Sequential(build(64, 16, seed=1), build(16, 10, seed=2))
    F.cross_entropy(alone(x), y).backward()
    for gradient, expected in zip([*ours.values(), *theirs.values()], alone.parameters(), strict=True):
        assert torch.allclose(gradient, expected.grad, rtol=0, atol=1e-12)
    print(
        f"loss {loss:.4f}; {len(ours)} gradients here and {len(theirs)} on {there} are those of one process"
    )


def main() -> None:
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")  # one machine
    warnings.filterwarnings("ignore", "You are using a Backend")  # torch's own, pytorch/pytorch#149393
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        compare(f"worker{world_size - 1}")
    rpc.shutdown()


if __name__ == "__main__":
    main()
