"""ZeRO-1 and ZeRO-2 by hand, on one flat vector: equal to one process, every byte counted.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_by_hand.py
Written by:  notebooks/18_sharded_optimizer.ipynb
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from shared.comm.record import record
from shared.comm.ring import ring_all_gather, ring_reduce_scatter
from shared.runtime.group import Group, process_group
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import batch, load_images, shareable
from shared.training.models import ConvNet
from shared.training.parity import assert_all_equal, assert_equal, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 5
    batch: int = 100  # images, or some more
    tolerance: float = 1e-12  # float64


OPTIMIZERS = {
    "Adam": lambda params: torch.optim.Adam(params, 0.01),
    "SGD with momentum": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9),
}


class Sharded:
    """A model in one flat vector, of which this rank, one of 0 .. n - 1, owns 1 / n.

    ``flat`` has (n * chunk,) elements: all parameters, then zeros up to a multiple of n. The parameters are
    views of it. ``mine`` is this rank's chunk, also a view, and all that the optimizer knows.
    Source: Rajbhandari et al., ZeRO, 2020, arXiv 1910.02054, section 5.
    """

    def __init__(self, model: nn.Module, build, n: int, rank: int) -> None:
        self.params, self.n = list(model.parameters()), n
        self.sizes = [p.numel() for p in self.params]
        self.padding = -sum(self.sizes) % n
        self.flat = F.pad(torch.cat([p.detach().flatten() for p in self.params]), (0, self.padding))
        for p, part in zip(self.params, self.flat.split([*self.sizes, self.padding]), strict=False):
            p.data = part.view_as(p)
        self.mine = nn.Parameter(self.flat.chunk(n)[rank])
        self.optimizer = build([self.mine])

    def step(self, stage: int) -> None:
        """Stage 1 gives each rank all averaged gradients, stage 2 only those that its optimizer needs."""
        gradient = F.pad(torch.cat([p.grad.flatten() for p in self.params]), (0, self.padding))
        self.mine.grad = ring_reduce_scatter(gradient, self.n)  # the sum of my chunk, over all ranks
        self.mine.grad /= self.n  # a view: my chunk of gradient is the mean now
        if stage == 1:
            ring_all_gather(gradient, self.n)  # reduce-scatter + all-gather = all-reduce
            for p, part in zip(self.params, gradient.split([*self.sizes, self.padding]), strict=False):
                p.grad = part.view_as(p)
        self.optimizer.step()  # writes into flat, and so into the parameters
        ring_all_gather(self.flat, self.n)


def build_model(group: Group) -> nn.Module:
    """The same on each rank, in float64: 1,626 parameters, which 4 does not divide."""
    torch.manual_seed(18)
    return ConvNet(channels=4).double().to(group.device)


def backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()


def reference(name: str, whole: tuple, cfg: Config, group: Group) -> list[tuple[list, torch.Tensor]]:
    """One process, the whole batch, the whole optimizer: (parameters, flat gradient) after each step."""
    model, after = build_model(group), []
    optimizer = OPTIMIZERS[name](model.parameters())
    for _ in range(cfg.steps):
        backward(model, *whole)
        optimizer.step()
        copies = [(name, p.detach().clone()) for name, p in model.named_parameters()]
        after.append((copies, torch.cat([p.grad.flatten() for p in model.parameters()])))
    return after


def train(stage: int, name: str, n: int, whole: tuple, alone: list, cfg: Config, group: Group) -> dict:
    """Train on ranks 0 .. n - 1 as ``alone`` did; return what this rank sent and holds."""
    model, part = build_model(group), [t[group.rank :: n] for t in whole]
    ours = Sharded(model, OPTIMIZERS[name], n, group.rank)
    for step, (weights, gradient) in enumerate(alone):
        backward(model, *part)
        with record() as log:
            ours.step(stage)
        what = f"stage {stage}, {name}, {n} ranks, step {step}:"
        assert_all_equal(what, parameters(model), weights, cfg.tolerance)
        mine = F.pad(gradient, (0, ours.padding)).chunk(n)[group.rank]
        assert_equal(f"{what} gradient", ours.mine.grad, mine, cfg.tolerance)
        if stage == 1:
            everything = torch.cat([p.grad.flatten() for p in model.parameters()])
            assert_equal(f"{what} all gradients", everything, gradient, cfg.tolerance)
    chunk = ours.mine.nbytes
    messages, sent = log.count("send"), log.bytes("send")
    assert messages == (4 - stage) * (n - 1), messages
    assert sent == messages * chunk, sent
    state = [t for s in ours.optimizer.state.values() for t in s.values() if t is not None and t.dim()]
    assert all(t.nbytes == chunk for t in state), "the state covers this rank's chunk and no more"
    size = sum(p.nbytes for p in model.parameters())
    return {"sent": sent, "calls": messages, "state": sum(t.nbytes for t in state), "whole": size}


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        size = shareable(cfg.batch, group.world_size)
        rows, whole = {}, batch(load_images("digits"), 0, size, group.device)
        alone = {name: reference(name, whole, cfg, group) for name in OPTIMIZERS}
        for n in range(1, group.world_size + 1):
            for stage in (1, 2):
                for name in OPTIMIZERS:
                    if group.rank < n:
                        row = train(stage, name, n, whole, alone[name], cfg, group)
                        rows[f"{name}, ZeRO-{stage}, {n}"] = row
                if group.rank == 0:
                    print(
                        f"{n} rank(s), ZeRO-{stage}: equal to one process; a rank sends "
                        f"{row['sent']:,} bytes per step in {row['calls']} messages"
                    )
        record_results("lab_18_by_hand", rows)


if __name__ == "__main__":
    run(main, Config())
