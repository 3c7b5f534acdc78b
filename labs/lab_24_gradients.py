"""One backward through two processes, in contexts that keep their gradients apart.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_24_gradients.py
Written by:  notebooks/24_distributed_autograd.ipynb
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc

from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    batch: int = 64
    hidden: int = 16
    tolerance: float = 1e-12  # float64


HERE: dict[str, nn.Module] = {}  # the part of the model that lives in this process


def build(part: str, seed: int, cfg: Config) -> nn.Module:
    """The front takes (batch, 64) to (batch, hidden), the head takes that to (batch, 10) scores."""
    torch.manual_seed(seed)
    if part == "front":
        return nn.Sequential(nn.Linear(64, cfg.hidden), nn.Tanh()).double()
    return nn.Linear(cfg.hidden, 10).double()


def head_forward(hidden: torch.Tensor) -> torch.Tensor:
    """Runs on the owner of the head."""
    return HERE["head"](hidden)


def head_gradients(context_id: int) -> dict[str, torch.Tensor]:
    """The head's gradients in one context. Runs on the owner of the head."""
    found = dist_autograd.get_gradients(context_id)  # {parameter: gradient}
    return {name: found[parameter] for name, parameter in HERE["head"].named_parameters()}


def plain_gradients() -> int:
    """How many parameters of this process have their ``.grad`` filled."""
    return sum(p.grad is not None for module in HERE.values() for p in module.parameters())


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
    model = nn.ModuleDict({"front": build("front", rank, cfg), "head": build("head", 99, cfg)})
    F.cross_entropy(model["head"](model["front"](x)), y).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group, rpc_workers(group) as workers:
        HERE["front"] = build("front", group.rank, cfg)  # each rank has its own front
        if group.rank == group.world_size - 1:
            HERE["head"] = build("head", 99, cfg)  # all use the last worker's head
        dist.barrier()
        x, y = data_of(group.rank, cfg)

        with dist_autograd.context() as context_id:
            scores = rpc.rpc_sync(workers[-1], head_forward, args=(HERE["front"](x),))
            loss = F.cross_entropy(scores, y)
            dist_autograd.backward(context_id, [loss])  # crosses to the head's process and back
            mine = dist_autograd.get_gradients(context_id)
            dist.barrier()  # now each rank's context is open, with gradients for the same head in each
            found = {f"front.{name}": mine[p] for name, p in HERE["front"].named_parameters()}
            theirs = rpc.rpc_sync(workers[-1], head_gradients, args=(context_id,))
            found |= {f"head.{name}": gradient for name, gradient in theirs.items()}
            ends = graph_ends(context_id), rpc.rpc_sync(workers[-1], graph_ends, args=(context_id,))
            dist.barrier()

        expected = reference(group.rank, cfg)
        assert sorted(found) == sorted(expected)
        largest = max(assert_equal(name, found[name], expected[name], cfg.tolerance) for name in expected)
        print_in_rank_order(
            f"loss {loss.item():.4f}, sum |gradient| of the head {found['head.weight'].abs().sum():.4f}; "
            f"largest difference to one process {largest:.0e}"
        )
        filled = [rpc.rpc_sync(name, plain_gradients) for name in workers]
        if any(filled):
            raise CourseError(f".grad is filled on the workers: {filled}")
        print_on_rank_0(f"parameters with a filled .grad, by worker: {filled}")
        if group.rank == 0:
            if ends != ((1, 1), (1, 1)):
                raise CourseError(f"(send, receive) functions here and at the head: {ends}")
            print("worker0's context: 1 send and 1 receive here, 1 receive and 1 send at the head")
        record_results("lab_24_gradients", {"head": found["head.weight"].tolist()})


if __name__ == "__main__":
    run(main, Config())
