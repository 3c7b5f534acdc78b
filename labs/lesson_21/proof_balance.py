"""Two ways to balance experts, beside none: a loss on the router, and a bias that only chooses.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_21/proof_balance.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal, assert_same_on_every_rank

from lab_21_moe import ExpertParallelMoE, MoE, Router
from lesson_21.proof_gpt import reduce_gradients


@dataclass(frozen=True)
class Config:
    width: int = 16
    hidden: int = 16
    experts: int = 4  # on each rank
    k: int = 2
    tokens: int = 256  # on each rank
    steps: int = 160
    last: int = 30  # steps that are judged
    better: float = 1.5  # with nothing, the highest load is at least this many times as high
    dearer: float = 1.3  # with balance, the loss is at most this many times as high
    lr: float = 0.01
    common: float = 0.3  # what all tokens share; it makes some experts everybody's favourites
    balance: float = 0.2  # the balance loss is multiplied by it
    speed: float = 0.01  # of the bias in the first step; it falls to 0, or the load would oscillate
    tolerance: float = 1e-12


def load_of_all(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """Rows of each expert, (experts,), from all ranks: a collective."""
    load = chosen.new_zeros(experts)
    load.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten()))
    dist.all_reduce(load)
    return load


def balance_loss(probabilities: torch.Tensor, load: torch.Tensor, tokens: int) -> torch.Tensor:
    """This rank's part of E * sum of f * P, eq. 4 of arXiv 2101.03961; ``tokens`` are those of all ranks."""
    f = load / load.sum()
    return len(load) * (f * probabilities.sum(0)).sum() / tokens


def move_bias(bias: torch.Tensor, load: torch.Tensor, step: float) -> None:
    """After the optimizer's step: up where there is less than the mean, down where there is more."""
    bias += step * (load.double().mean() - load).sign()


class Watched:
    """Gives a router a bias for the choice, a buffer, and keeps what it last chose, and from what."""

    def __init__(self, router: Router) -> None:
        self.router = router
        bias = torch.zeros(len(router.weight), device=router.weight.device)
        router.register_buffer("bias", bias)  # float32, whatever the weight is
        router.choose = self.choose

    def choose(self, probabilities: torch.Tensor) -> torch.Tensor:
        self.probabilities = probabilities
        self.chosen = (probabilities + self.router.bias).topk(self.router.k).indices
        return self.chosen


def tokens_of(step: int, group: Group, cfg: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all ranks. Each rank takes its chunk, and each chunk is of its own kind."""
    generator = torch.Generator().manual_seed(1000 + step)
    fixed = torch.Generator().manual_seed(7)
    common = cfg.common * torch.randn(cfg.width, generator=fixed, dtype=torch.float64)
    kinds = torch.randn(group.world_size, 1, cfg.width, generator=fixed, dtype=torch.float64)
    teacher = torch.randn(cfg.width, cfg.width, generator=fixed, dtype=torch.float64) / cfg.width**0.5
    size = (group.world_size, cfg.tokens, cfg.width)
    x = (torch.randn(size, generator=generator, dtype=torch.float64) + kinds + common).flatten(0, 1)
    return x.to(group.device), (x @ teacher).tanh().to(group.device)


def fresh(truth: dict, group: Group, cfg: Config) -> MoE:
    experts = cfg.experts * group.world_size
    whole = MoE(cfg.width, cfg.hidden, experts, cfg.k, torch.float64).to(group.device)
    whole.load_state_dict(truth)
    return whole


def check_loss(truth: dict, group: Group, cfg: Config) -> str:
    """The ranks' balance losses and their gradients add up to those of one process, if f is that of all."""
    x, _ = tokens_of(0, group, cfg)
    reference = Watched(fresh(truth, group, cfg).router)
    reference.router(x)
    experts = len(reference.router.weight)
    alone = balance_loss(
        reference.probabilities, reference.chosen.flatten().bincount(minlength=experts), len(x)
    )
    alone.backward()

    def over_ranks(load_of: Callable) -> None:
        watched = Watched(fresh(truth, group, cfg).router)
        watched.router(x.chunk(group.world_size)[group.rank])
        loss = balance_loss(watched.probabilities, load_of(watched.chosen, experts), len(x))
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        dist.all_reduce(watched.router.weight.grad)
        assert_equal("balance loss", total, alone.detach(), cfg.tolerance)
        assert_equal("its gradient", watched.router.weight.grad, reference.router.weight.grad, cfg.tolerance)

    over_ranks(load_of_all)
    try:
        over_ranks(lambda chosen, experts: chosen.flatten().bincount(minlength=experts))
    except ParityError:
        return "differs from one process"
    raise CourseError("with the load of own tokens, the balance loss should differ")


def train(way: str, truth: dict, group: Group, cfg: Config) -> dict:
    """Train one layer. Returns the load of each expert after each step, and the loss without balance."""
    layer = ExpertParallelMoE(fresh(truth, group, cfg))
    watched = Watched(layer.router)
    optimizer = torch.optim.Adam(layer.parameters(), lr=cfg.lr)
    loads = []
    losses = []
    for step in range(cfg.steps):
        x, target = tokens_of(step, group, cfg)
        optimizer.zero_grad()
        y = layer(x.chunk(group.world_size)[group.rank])
        error = (y - target.chunk(group.world_size)[group.rank]).square().sum() / target.numel()
        load = load_of_all(watched.chosen, layer.expert_count)
        loss = error
        if way == "balance loss":
            loss = error + cfg.balance * balance_loss(watched.probabilities, load, len(x))
        loss.backward()
        reduce_gradients(layer, dist.group.WORLD)
        optimizer.step()
        if way == "bias":
            move_bias(layer.router.bias, load, cfg.speed * (1 - step / cfg.steps))
        total = error.detach().clone()
        dist.all_reduce(total)
        loads.append(load.tolist())
        losses.append(total.item())
    assert_same_on_every_rank(way, layer.router.state_dict().items())
    return {"loads": loads, "losses": losses}


def imbalance(loads: list[list[int]], last: int) -> float:
    """The highest load over the mean load, on average of the last steps."""
    ratios = [max(load) / (sum(load) / len(load)) for load in loads[-last:]]
    return sum(ratios) / len(ratios)


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        whole = MoE(cfg.width, cfg.hidden, cfg.experts * group.world_size, cfg.k, torch.float64).to(
            group.device
        )
        broadcast_from_rank_0(whole.parameters())
        truth = whole.state_dict()
        print_on_rank_0("balance loss, load of all ranks: loss and gradient are those of one process")
        print_on_rank_0(f"balance loss, load of own tokens: {check_loss(truth, group, cfg)}")
        results = {way: train(way, truth, group, cfg) for way in ("nothing", "balance loss", "bias")}
        ratios = {}
        losses = {}
        for way, result in results.items():
            first = imbalance(result["loads"][:1], 1)
            ratios[way] = imbalance(result["loads"], cfg.last)
            losses[way] = sum(result["losses"][-cfg.last :]) / cfg.last
            print_on_rank_0(
                f"{way}: highest load {first:.1f} times the mean at the start, {ratios[way]:.1f} at the end; "
                f"loss {losses[way]:.2f}"
            )
        if ratios["nothing"] < cfg.better * max(ratios["balance loss"], ratios["bias"]):
            raise CourseError(f"the load should become more even by both ways: {ratios}")
        if max(losses.values()) > cfg.dearer * losses["nothing"]:
            raise CourseError(f"balance should not cost the task so much: {losses}")
        record_results("21_balance", results)


if __name__ == "__main__":
    run(main, Config())
