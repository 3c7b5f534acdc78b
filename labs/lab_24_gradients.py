"""As many contexts as ranks are open on one head, and none mixes with another: each equals one process.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_24_gradients.py
Written by:  notebooks/24_distributed_autograd.ipynb (edit it there)
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_24_context import backward, build, gradients
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc

from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_equal

HEAD_SEED = 99


@dataclass(frozen=True)
class Config:
    batch: int = 64
    hidden: int = 16
    tolerance: float = 1e-12  # float64


HERE: dict[str, nn.Module] = {}  # the parts of the model that live in this process


def shared_head() -> rpc.RRef:
    """A reference to the head that lives in this process."""
    return rpc.RRef(HERE["head"])


def filled_gradients() -> int:
    """How many parameters of this process have their ``.grad`` filled."""
    parameters = [parameter for module in HERE.values() for parameter in module.parameters()]
    return sum(parameter.grad is not None for parameter in parameters)


def graph_ends(context_id: int) -> tuple[int, int]:
    """How many functions autograd added in this process to (send, receive) tensors."""
    context = dist_autograd._retrieve_context(context_id)
    return len(context._send_functions()), len(context._recv_functions())


def data_of(rank: int, cfg: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's images, float64 (batch, 64), and labels (batch,)."""
    images = load_images("digits")
    mine = slice(rank * cfg.batch, (rank + 1) * cfg.batch)
    return images.train_x[mine].flatten(1).double(), images.train_y[mine]


def reference(rank: int, cfg: Config) -> dict[str, torch.Tensor]:
    """{name: gradient} when front and head of this rank's model are in one process."""
    x, y = data_of(rank, cfg)
    model = nn.ModuleDict(
        {"front": build(64, cfg.hidden, seed=rank), "head": build(cfg.hidden, 10, seed=HEAD_SEED)}
    )
    F.cross_entropy(model["head"](model["front"](x)), y).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group, rpc_workers(group) as workers:
        HERE["front"] = build(64, cfg.hidden, group.rank)  # each rank has its own front
        if group.rank == group.world_size - 1:
            HERE["head"] = build(cfg.hidden, 10, HEAD_SEED)  # all use the last worker's head
        dist.barrier()
        owner = workers[-1]
        head = rpc.rpc_sync(owner, shared_head)
        x, y = data_of(group.rank, cfg)

        with dist_autograd.context() as context_id:
            loss = backward(context_id, HERE["front"], head, x, y)
            dist.barrier()  # now each rank's context is open, with gradients for the same head in each
            mine = gradients(rpc.RRef(HERE["front"]), context_id)
            theirs = rpc.rpc_sync(owner, gradients, args=(head, context_id))
            ends_here = graph_ends(context_id)
            ends_there = rpc.rpc_sync(owner, graph_ends, args=(context_id,))
            dist.barrier()

        ours = {f"front.{name}": gradient for name, gradient in mine.items()}
        ours |= {f"head.{name}": gradient for name, gradient in theirs.items()}
        expected = reference(group.rank, cfg)
        assert sorted(ours) == sorted(expected)
        largest = max(assert_equal(name, ours[name], expected[name], cfg.tolerance) for name in expected)
        total = theirs["0.weight"].abs().sum()
        print_in_rank_order(
            f"loss {loss:.4f}, sum |gradient| of the head {total:.4f}; "
            f"largest difference to one process {largest:.0e}"
        )
        filled = [rpc.rpc_sync(name, filled_gradients) for name in workers]
        if any(filled):
            raise CourseError(f".grad is filled on the workers: {filled}")
        print_on_rank_0(f"parameters with a filled .grad, by worker: {filled}")
        if group.rank == 0:
            if (ends_here, ends_there) != ((1, 1), (1, 1)):
                raise CourseError(f"(send, receive) functions here: {ends_here}, at the head: {ends_there}")
            print("worker0's context: 1 send and 1 receive here, 1 receive and 1 send at the head")


if __name__ == "__main__":
    run(main, Config())
