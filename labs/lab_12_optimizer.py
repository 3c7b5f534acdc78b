"""What Join does to optimizers: SGD's momentum stays behind on some ranks, ZeRO steps with old gradients.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_optimizer.py
Written by:  notebooks/12_uneven_inputs.ipynb (edit it there)
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    inputs: int = 5  # batches on rank 0; rank r has r more
    even: int = 3  # batches on each rank afterwards
    learning_rate: float = 0.5
    tolerance: float = 1e-12  # float64
    apart: float = 1e-5  # what differs, differs by more


class SameState(Joinable, JoinHook):
    """Gives all ranks the momentum of the rank that ran out last. It is its own hook."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.device = device

    def join_hook(self, **kwargs) -> JoinHook:
        return self

    def post_hook(self, is_last_joiner: bool) -> None:
        """Collective: Join calls it once on each rank, when no rank has inputs. Several may be last."""
        last = torch.tensor(dist.get_rank() if is_last_joiner else -1, device=self.device)
        dist.all_reduce(last, op=dist.ReduceOp.MAX)
        for parameter in (p for group in self.optimizer.param_groups for p in group["params"]):
            state = self.optimizer.state[parameter]
            state.setdefault("momentum_buffer", torch.zeros_like(parameter))  # a rank without any input
            dist.broadcast(state["momentum_buffer"], src=int(last))

    @property
    def join_device(self) -> torch.device:
        return self.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        return dist.group.WORLD


def build(device: torch.device) -> nn.Module:
    torch.manual_seed(4)  # the same start on each rank; 8 parameters, one for each of 8 ranks
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)], nn.Linear(8, 4)).double().to(device)


def loss_of(model: nn.Module, step: int, rank: int, device: torch.device) -> torch.Tensor:
    """The mean loss of the data that are this rank's in this step: (16, 8) random numbers."""
    x = torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(8 * step + rank))
    return model(x.to(device)).sigmoid().square().mean()


def reference(steps: int, owners: list[int] | None, cfg: Config, group: Group) -> list[torch.Tensor]:
    """One process. Each step's loss is the sum of those of the ranks with inputs, divided by all ranks.

    With ``owners``, the ranks that keep each parameter's momentum, it makes ZeRO's mistake: as long as its
    owner is without inputs, a parameter steps with the last gradient from before.
    """
    model = build(group.device)
    n = group.world_size
    optimizer = torch.optim.SGD(model.parameters(), cfg.learning_rate, momentum=0.9)
    old: dict[int, torch.Tensor] = {}
    for step in range(steps):
        has_inputs = [step < cfg.inputs + rank or step >= cfg.inputs + n - 1 for rank in range(n)]
        optimizer.zero_grad()
        for rank in range(n):
            if has_inputs[rank]:
                (loss_of(model, step, rank, group.device) / n).backward()
        for index, parameter in enumerate(model.parameters()):
            if owners and not has_inputs[owners[index]]:
                parameter.grad = old[index]
            old[index] = parameter.grad.clone()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def compare(model: nn.Module, truth: list[torch.Tensor]) -> tuple[bool, float]:
    """(are all ranks' parameters equal bit for bit, their largest difference to ``truth``). Collective."""
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    from_rank_0 = mine.clone()
    dist.broadcast(from_rank_0, src=0)
    off = (mine - torch.cat([p.flatten() for p in truth])).abs().max()
    worst = torch.stack([(mine != from_rank_0).any().to(off.dtype), off])
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return not worst[0].item(), worst[1].item()


def train(way: str, cfg: Config, group: Group) -> tuple[tuple[bool, float], tuple[bool, float]]:
    """Train on uneven inputs under Join, then on even ones; ``compare`` with one process after each."""
    ddp = DistributedDataParallel(build(group.device))
    n = group.world_size
    parameters = list(ddp.parameters())
    owners = None
    optimizer = torch.optim.SGD(parameters, cfg.learning_rate, momentum=0.9)
    joinables = [ddp, SameState(optimizer, group.device)] if way == "SGD, same state" else [ddp]
    if way.startswith("ZeRO"):
        optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=cfg.learning_rate, momentum=0.9)
        joinables = [ddp, optimizer]
        mine = {id(p) for g in optimizer.optim.param_groups for p in g["params"]}
        keeps = [None] * n
        dist.all_gather_object(keeps, [id(p) in mine for p in parameters])
        if way == "ZeRO, same mistake":
            owners = [kept_by.index(True) for kept_by in zip(*keeps, strict=True)]

    def train_on(steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            loss_of(ddp, step, group.rank, group.device).backward()
            optimizer.step()

    uneven = cfg.inputs + n - 1
    with Join(joinables):
        train_on(range(cfg.inputs + group.rank))
    after_join = compare(ddp, reference(uneven, owners, cfg, group))
    train_on(range(uneven, uneven + cfg.even))
    after_more = compare(ddp, reference(uneven + cfg.even, owners, cfg, group))
    return after_join, after_more


# after Join and after the even steps: (are the ranks equal, are they as one process)
EXPECTED = {
    "SGD": ((True, True), (False, False)),
    "SGD, same state": ((True, True), (True, True)),
    "ZeRO": ((True, False), (True, False)),
    "ZeRO, same mistake": ((True, True), (True, True)),
}


def check(what: str, found: tuple[bool, float], expected: tuple[bool, bool], cfg: Config) -> None:
    """Compare what ``compare`` has found with what is expected; say it on rank 0."""
    equal, off = found
    as_one_process = off <= cfg.tolerance
    unclear = cfg.tolerance < off < cfg.apart
    if (equal, as_one_process) != expected or unclear:
        raise CourseError(f"{what}: {found}, which is not what this lab shows")
    ranks = "equal" if equal else "differ"
    parity = "equal to one process" if as_one_process else f"off by {off:.0e}"
    print_on_rank_0(f"{what}: ranks {ranks}, {parity}")


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        for way, (expected_after_join, expected_after_more) in EXPECTED.items():
            after_join, after_more = train(way, cfg, group)
            check(f"{way:18} after Join", after_join, expected_after_join, cfg)
            check(f"{way:18} after more", after_more, expected_after_more, cfg)


if __name__ == "__main__":
    run(main, Config())
