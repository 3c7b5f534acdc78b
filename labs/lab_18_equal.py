"""torch's sharded optimizer beside the plain one after every step; Muon on FSDP2, and what it sends.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_equal.py
Written by:  notebooks/18_sharded_optimizer.ipynb (edit it there)
"""

import warnings
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.models import AwkwardNet
from shared.training.parity import assert_all_equal, assert_equal, assert_same_on_every_rank, parameters
from shared.training.side_by_side import loss_of


@dataclass(frozen=True)
class Config:
    steps: int = 4
    tolerance: float = 1e-12  # float64
    bfloat16: float = 0.05  # Muon orthogonalizes in bfloat16


OPTIMIZERS = {
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.05}),  # looks at rows and columns of a whole matrix
}


def build(seed: int, group: Group) -> nn.Module:
    """Tied, frozen and unused parameters, and a layer that only some ranks use."""
    torch.manual_seed(seed)
    return AwkwardNet().double().to(group.device)


def groups_of(net: nn.Module) -> list[dict]:
    """Two parameter groups, as is usual: biases do not decay."""
    weights = [p for p in net.parameters() if p.dim() > 1]
    biases = [p for p in net.parameters() if p.dim() == 1]
    return [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]


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
    ddp = DistributedDataParallel(net, find_unused_parameters=True)
    sharded = ZeroRedundancyOptimizer(groups_of(net), kind, **options)
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

    tensors = len(list(alone.parameters()))
    assert log.counts()["broadcast"] == tensors, "each parameter is sent by itself"
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


def muon_update(weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """What one step of Muon adds to a matrix, or to some rows of it as if they were the matrix."""
    p = nn.Parameter(weight.clone())
    p.grad = gradient
    torch.optim.Muon([p], lr=1.0, weight_decay=0.0).step()
    return p.detach() - weight


def muon_on_fsdp(cfg: Config, group: Group) -> None:
    """On a matrix that FSDP2 has cut, torch's Muon makes one process's step; on a rank's rows another."""
    generator = torch.Generator().manual_seed(18)
    weight, gradient = torch.randn(2, 64, 64, generator=generator).to(group.device)
    truth = muon_update(weight, gradient)
    layer = nn.Linear(64, 64, bias=False, device=group.device)
    layer.weight = nn.Parameter(weight.clone())
    fully_shard(layer, mesh=init_device_mesh(group.device.type, (group.world_size,)))
    shards = layer.weight
    shards.grad = distribute_tensor(gradient, shards.device_mesh, shards.placements)
    with CommDebugMode() as calls:
        torch.optim.Muon([shards], lr=1.0, weight_decay=0.0).step()
    error = (shards.full_tensor().detach() - weight - truth).norm() / truth.norm()
    assert error < cfg.bfloat16, f"Muon on FSDP2 is off by {error:.0%}"
    mine = torch.arange(64).tensor_split(group.world_size)[group.rank]
    bare = muon_update(weight[mine], gradient[mine]) - truth[mine]
    assert group.world_size == 1 or bare.norm() > 0.1 * truth[mine].norm()
    made = ", ".join(f"{number} x {str(op).split('.')[-1]}" for op, number in calls.get_comm_counts().items())
    print_on_rank_0(f"Muon on FSDP2: off by {error:.1%}; for one matrix {made or 'no call'}")
    print_on_rank_0(
        f"Muon on a rank's rows alone: off by {bare.norm() / truth[mine].norm():.0%}, without an error"
    )


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for name in OPTIMIZERS:
            counted = compare(name, cfg, group)
            calls = ", ".join(f"{number} x {call}" for call, number in counted.items())
            print_on_rank_0(f"{name}: equal after each of {cfg.steps} steps; a step is {calls}")
        muon_on_fsdp(cfg, group)


if __name__ == "__main__":
    run(main, Config())
