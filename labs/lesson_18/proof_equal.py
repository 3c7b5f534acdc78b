"""The optimizer of lab_18_torch beside the plain one after every step, what it sends; beside it FSDP2.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_18/proof_equal.py
"""

import warnings
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.models import AwkwardNet
from shared.training.parity import assert_all_equal, assert_equal, assert_same_on_every_rank, parameters
from shared.training.side_by_side import loss_of

import lab_18_torch as lab
from lab_18_torch import groups_of, wrap


@dataclass(frozen=True)
class Config:
    steps: int = 4
    tolerance: float = 1e-12  # float64


OPTIMIZERS = {
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.05}),  # looks at rows and columns of a whole matrix
}


def build(seed: int, group: Group) -> nn.Module:
    """Tied, frozen and unused parameters, and a layer that only some ranks use."""
    torch.manual_seed(seed)
    return AwkwardNet().double().to(group.device)


def reference(group: Group) -> nn.Module:
    """One process starts from the model of rank 0's seed."""
    return build(0, group)


def compare(name: str, cfg: Config, group: Group) -> dict[str, int]:
    """Train both side by side; they must stay equal. Returns the calls of torch's in the last step."""
    kind, options = OPTIMIZERS[name]
    data = load_images("digits")
    ranks = group.world_size
    alone = reference(group)
    plain = kind(groups_of(alone), **options)
    net = build(group.rank, group)  # seeds differ by rank
    ddp, sharded = wrap(net, kind, find_unused=True, **options)
    for step in range(cfg.steps):
        for optimizer in (plain, sharded):
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = options["lr"] / (1 + step)  # as a scheduler would
        (sum(loss_of(alone, data, r, step) for r in range(ranks)) / ranks).backward()
        plain.step()
        with record() as log:
            loss_of(ddp, data, group.rank, step).backward()
            sharded.step()
        what = f"{name}, step {step}"
        assert_all_equal(what, parameters(net), parameters(alone), cfg.tolerance)
        assert_same_on_every_rank(what, parameters(net))

    if log.counts()["broadcast"] != ranks:
        raise CourseError(f"{name}: {log.counts()['broadcast']} broadcasts in a step, expected {ranks}")
    sharded.consolidate_state_dict(to=0)
    if group.rank == 0:
        same_state(name, sharded.state_dict(), plain.state_dict(), cfg.tolerance)
    return log.counts()


def same_state(what: str, ours: dict, plain: dict, tolerance: float) -> None:
    """The whole state, gathered from all ranks, is the plain optimizer's."""
    assert ours["state"].keys() == plain["state"].keys(), what
    assert [g["params"] for g in ours["param_groups"]] == [g["params"] for g in plain["param_groups"]], what
    for number, state in plain["state"].items():
        for key, value in state.items():
            if torch.is_tensor(value):
                assert_equal(f"{what}: {key} {number}", ours["state"][number][key], value.cpu(), tolerance)


def broadcasts_by_default(group: Group) -> int:
    """What a step sends if ``parameters_as_bucket_view`` stays False."""
    net = build(0, group)
    ddp = DistributedDataParallel(net, find_unused_parameters=True)
    sharded = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    loss_of(ddp, load_images("digits"), group.rank, 0).backward()
    with record() as log:
        sharded.step()
    return log.counts()["broadcast"]


def train_fsdp(group: Group) -> None:
    """FSDP2, parameters whole from forward to backward: gradients and state are divided, as in ZeRO-2.

    Raises:
        CourseError: its losses are not those of lab_18_torch, or a rank keeps more than its part.
    """
    torch.manual_seed(1 + group.rank)
    x = torch.randn(256, 32, device=group.device)
    y = x[:, :1] * x[:, 1:2]
    model = lab.build(group.device)
    for layer in [*(layer for layer in model if isinstance(layer, nn.Linear)), model]:
        fully_shard(layer, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(groups_of(model), lr=0.01)
    losses = lab.train(model, optimizer, x, y)
    theirs = lab.train(*wrap(lab.build(group.device), torch.optim.AdamW, lr=0.01), x, y)
    if max(abs(a - b) for a, b in zip(losses, theirs, strict=True)) > 1e-4:
        raise CourseError("FSDP2: the losses are not those of ZeRO-1")
    here = sum(p.grad.to_local().nbytes for p in model.parameters())
    moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    state = sum(t.to_local().nbytes for t in moments)
    whole = sum(p.nbytes for p in model.parameters())
    parts = gather_on_rank_0((here, state))
    if group.rank == 0:
        if sum(here for here, _ in parts) != whole or sum(state for _, state in parts) != 2 * whole:
            raise CourseError(f"FSDP2: the ranks keep {parts} of {whole:,} bytes")
        told = ", ".join(f"{here:,} + {state:,}" for here, state in parts)
        print("FSDP2 on the model of lab_18_torch.py, same losses; gradients + state, by rank,")
        print(f"    of {whole:,} + {2 * whole:,} bytes: {told}")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for name in OPTIMIZERS:
            counted = compare(name, cfg, group)
            calls = ", ".join(f"{number} x {call}" for call, number in counted.items())
            print_on_rank_0(f"{name}: equal after each of {cfg.steps} steps; a step is {calls}")
        print_on_rank_0(f"by default a step is {broadcasts_by_default(group)} x broadcast")
        train_fsdp(group)


if __name__ == "__main__":
    run(main, Config())
