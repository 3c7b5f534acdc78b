"""ShardedOptimizer as somebody else would use it: every class of torch.optim, and what users do with one."""

import itertools

import torch
import torch.distributed as dist
from torch import nn

from shared.lesson_18.sharded_optimizer import UNFIT, ShardedOptimizer
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.models import AwkwardNet
from shared.training.parity import assert_all_equal, parameters

CLASSES = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
]


def net_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return AwkwardNet().double()


def loss_of(net: nn.Module, rank: int, step: int) -> torch.Tensor:
    x = torch.randn(
        5, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank)
    )
    return net(x, step % 3 == 2 or (step % 3 == 1 and rank == 0)).square().mean()


def matrices(net: nn.Module) -> list[torch.Tensor]:
    return [p for p in net.parameters() if p.dim() == 2]  # Muon takes nothing else


def train(kind: type, stage: int, group: Group, members: list[int], max_norm: float | None = None) -> None:
    """Five steps with a scheduler, a layer frozen and thawed, a group added, two backwards in one step, a
    reload into a new optimizer. Equal to one plain optimizer after each."""
    pg, n = dist.new_group(members), len(members)
    if group.rank not in members:
        return
    net, alone = net_of(group.rank), net_of(members[0])
    ours = ShardedOptimizer(
        matrices(net)[:4], kind, stage, process_group=pg, bucket_mb=0.005, max_norm=max_norm, lr=0.01
    )
    plain = kind(matrices(alone)[:4], lr=0.01)
    ours.add_param_group({"params": matrices(net)[4:], "lr": 0.02})
    plain.add_param_group({"params": matrices(alone)[4:], "lr": 0.02})
    for p, q in zip(net.parameters(), alone.parameters(), strict=True):  # those that nobody optimizes
        if p.dim() == 1:
            p.data.copy_(q)
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7) for optimizer in (ours, plain)]
    for step in range(5):
        for model, optimizer in ((net, ours), (alone, plain)):
            model.second.weight.requires_grad_(step != 2)
            optimizer.zero_grad()
        for part in range(2 if step == 1 else 1):
            (sum(loss_of(alone, r, step + part) for r in members) / n).backward()
            loss_of(net, group.rank, step + part).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(matrices(alone), max_norm)
        for optimizer in (plain, ours):
            optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        assert_all_equal(f"{kind.__name__} {stage} step {step}", parameters(net), parameters(alone), 1e-12)
        if step == 2:
            ours.consolidate_state_dict(to=n - 1)
            whole = [ours.state_dict()] if dist.get_rank(pg) == n - 1 else [None]
            dist.broadcast_object_list(whole, group=pg, group_src=n - 1)
            fresh = kind(matrices(alone)[:4], lr=0.5)
            fresh.add_param_group({"params": matrices(alone)[4:]})
            fresh.load_state_dict(whole[0])
            ours.load_state_dict(plain.state_dict())
            schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7) for optimizer in (ours, fresh)]
            plain = fresh


def by_closure(group: Group) -> float:
    """The usual form with a closure; returns the loss."""
    p = torch.full((3,), 2.0, requires_grad=True)
    optimizer = ShardedOptimizer([p], torch.optim.SGD, lr=0.25)  # fewer parameters than ranks

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert p.tolist() == [1.0] * 3 and loss.item() == 12.0
    try:
        optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]})
    except ValueError as error:
        print_on_rank_0(f"refused: {error}")
    return loss.item()


def inside_ddp() -> None:
    """DDP and stage 2 would both average: that is refused. With stage 1 it is fine."""
    for stage in (1, 2):
        net = net_of(0)
        ddp = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
        optimizer = ShardedOptimizer(matrices(net), torch.optim.SGD, stage, lr=0.1)
        loss_of(ddp, dist.get_rank(), 0).backward()
        try:
            optimizer.step()
        except RuntimeError as error:
            print_on_rank_0(f"refused: {error}")


def main() -> None:
    with process_group(timeout_s=20) as group:
        everyone = list(range(group.world_size))
        for kind, stage in itertools.product(CLASSES, (1, 2)):
            if kind in UNFIT:
                try:
                    ShardedOptimizer([torch.ones(1, requires_grad=True)], kind, stage)
                except ValueError as error:
                    print_on_rank_0(f"refused: {error}")
                continue
            train(kind, stage, group, everyone)
            print_on_rank_0(f"equal: {kind.__name__} {stage}")
        for stage in (1, 2):
            train(torch.optim.Adam, stage, group, everyone, max_norm=0.02)
            train(torch.optim.Adam, stage, group, [0, group.world_size - 1])
            print_on_rank_0(f"equal: clipped, and on two ranks {stage}")
        by_closure(group)
        inside_ddp()


if __name__ == "__main__":
    run(main)
