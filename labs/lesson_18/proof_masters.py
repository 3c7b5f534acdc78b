"""ZeRO-1 for bfloat16 with masters in float32 equals one process, also restarted; what is kept and sent.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_18/proof_masters.py
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import batch, load_images, shareable
from shared.training.parity import assert_equal

from lab_18_zero_1 import Zero1
from lesson_18.proof_by_hand import backward, build_model, groups_of


@dataclass(frozen=True)
class Config:
    steps: int = 3
    batch: int = 100  # images, or some more
    tolerance: float = 1e-6  # float32
    slack: float = 0.01  # padding, as a fraction


class WithMasters(Zero1):
    """ZeRO-1 for parameters in bfloat16: the optimizer steps masters, this rank's part in float32.

    Gradients are added up over the ranks in float32: bfloat16 keeps 8 bits of a sum. For that, each step
    copies the whole gradient, 4 bytes per parameter. Several backward passes in a step add up in bfloat16.
    The masters are in the ``state_dict()``. Load a model before you build this, or load the optimizer's
    state after the model.
    """

    def __init__(self, params: Iterable, build: Callable, group: dist.ProcessGroup | None = None):
        super().__init__(params, build, group)
        self.shards = [nn.Parameter(shard.detach().float()) for shard in self.shards]
        options = [
            {**param_group, "params": [master]}
            for param_group, master in zip(self.param_groups, self.shards, strict=True)
        ]
        self.optimizer = build(options)
        self.share_state()
        self.versions = self.versions_of_parameters()

    def versions_of_parameters(self) -> list[int]:
        """Counts what writes to a parameter, as loading a model does; steps of ours are not counted."""
        return [p._version for p in self.params]

    def average(self) -> None:
        if self.versions_of_parameters() != self.versions:
            raise RuntimeError("the masters are older than the model: load the optimizer's state after it")
        super().average()

    def state_dict(self) -> dict:
        return {**super().state_dict(), "masters": [master.detach() for master in self.shards]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """Masters, too. The parameters become these, rounded. All ranks must call it."""
        super().load_state_dict(state_dict)
        for master, saved in zip(self.shards, state_dict["masters"], strict=True):
            master.copy_(saved)
        self.gather_parameters()
        self.versions = self.versions_of_parameters()

    def average_gradient(self) -> torch.Tensor:
        wide = self.gradient.float()
        mean = wide.new_empty(len(self.part))
        dist.reduce_scatter_tensor(mean, wide, op=dist.ReduceOp.AVG, group=self.group)
        return mean.float()

    def gather_parameters(self) -> None:
        for shard, own in zip(self.shards, self.ranges, strict=True):
            self.part[own] = shard.detach()  # rounded
        super().gather_parameters()


def adamw(groups: list) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01)


class OneProcess:
    """The same in one process: bfloat16 for forward and backward, masters in float32, each rank's share."""

    def __init__(self, group: Group) -> None:
        self.net = build_model(group, torch.bfloat16)
        self.params = []
        self.masters = []
        options = []
        for param_group in groups_of(self.net):
            params = [p for p in param_group["params"] if p.requires_grad]
            masters = [nn.Parameter(p.detach().float()) for p in params]
            self.params += params
            self.masters += masters
            options.append({**param_group, "params": masters})
        self.optimizer = adamw(options)

    def step(self, x: torch.Tensor, y: torch.Tensor, n: int) -> None:
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        for rank in range(n):
            self.net.zero_grad()
            backward(self.net, x[rank::n], y[rank::n])
            for master, p in zip(self.masters, self.params, strict=True):
                master.grad += p.grad.float()
        for master in self.masters:
            master.grad /= n
        self.optimizer.step()
        with torch.no_grad():
            for master, p in zip(self.masters, self.params, strict=True):
                p.copy_(master)


def restarted(
    net: nn.Module, ours: WithMasters, members: dist.ProcessGroup, group: Group
) -> tuple[nn.Module, WithMasters]:
    """What a new process makes of the two state dicts: the model's is loaded, then the optimizer's."""
    saved_net, saved = copy.deepcopy((net.state_dict(), ours.state_dict()))
    net = build_model(group, torch.bfloat16)
    ours = WithMasters(groups_of(net), adamw, members)
    net.load_state_dict(saved_net)
    try:
        ours.step()
    except RuntimeError:
        ours.load_state_dict(saved)
        return net, ours
    raise CourseError("WithMasters should have refused a model that was loaded after it was built")


def prove(n: int, members: dist.ProcessGroup, x, y, cfg: Config, group: Group) -> dict[str, float]:
    """Train on the first ``n`` ranks and in one process; bytes per trainable parameter on this rank."""
    alone = OneProcess(group)
    net = build_model(group, torch.bfloat16)
    ours = WithMasters(groups_of(net), adamw, members)
    numel = sum(p.numel() for p in ours.params)
    for step in range(cfg.steps):
        alone.step(x, y, n)
        ours.zero_grad()
        with record() as log:
            backward(net, x[group.rank :: n], y[group.rank :: n])
            ours.step()
        own = torch.cat([shard.detach() for shard in ours.shards])
        masters = torch.cat([master.detach().flatten() for master in alone.masters])
        expected = masters.split(len(ours.part))[group.rank]  # the last rank's part has padding, not a shard
        assert_equal(f"masters in float32, N = {n}, step {step}", own, expected, cfg.tolerance)
        if not torch.equal(ours.part[: len(own)], own.bfloat16()):
            raise CourseError("the parameters should be the rounded masters")
        net, ours = restarted(net, ours, members, group)
    moments = [ours.state[shard][name] for shard in ours.shards for name in ("exp_avg", "exp_avg_sq")]
    counted = {
        "parameters and gradients": (ours.flat.nbytes + ours.gradient.nbytes) / numel,
        "state": sum(tensor.nbytes for tensor in (*ours.shards, *moments)) / numel,
        "sent": log.by_rule() / numel,
    }
    formula = {"parameters and gradients": 4, "state": 12 / n, "sent": (4 + 2) * (n - 1) / n}
    for what, expected in formula.items():
        if abs(counted[what] - expected) > cfg.slack * max(expected, 1):
            raise CourseError(f"{what}: {counted[what]:.2f} bytes per parameter, expected {expected:.2f}")
    return counted


def check_rounding() -> None:
    """200 steps of 0.001 from 1 in bfloat16, rounded stochastically: right on average."""
    weights = torch.ones(1000, dtype=torch.bfloat16)
    torch.manual_seed(18)
    for _ in range(200):
        bits = (weights.float() - 0.001).view(torch.int32)  # bfloat16 is the upper half of these bits
        bits += torch.randint(1 << 16, bits.shape, dtype=torch.int32)
        weights = (bits & -(1 << 16)).view(torch.float32).bfloat16()
    mean = weights.float().mean().item()
    if abs(mean - 0.8) > 0.005:
        raise CourseError(f"rounded stochastically, the mean is {mean}")
    print_on_rank_0(f"200 steps of 0.001 with stochastic rounding: {mean:.3f} on average")


def check_figure() -> None:
    """Figure 1 of the paper: gigabytes on a rank for 7.5 billion parameters on 64 GPUs."""
    billions, n = 7.5, 64
    bytes_of = (2 + 2 + 12, 2 + 2 + 12 / n, 2 + (2 + 12) / n, (2 + 2 + 12) / n)  # DDP, ZeRO-1, -2, -3
    if [round(billions * size, 1) for size in bytes_of] != [120.0, 31.4, 16.6, 1.9]:
        raise CourseError(f"the paper's figure has other numbers than {bytes_of} bytes per parameter give")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        check_rounding()
        check_figure()
        x, y = batch(load_images("digits"), 0, shareable(cfg.batch, group.world_size), group.device)
        x = x.bfloat16()
        rows = {}
        for n in range(1, group.world_size + 1):
            members = dist.new_group(list(range(n)))
            if group.rank < n:
                rows[str(n)] = prove(n, members, x, y, cfg, group)
        print_on_rank_0(
            f"masters in float32: equal to one process after each of {cfg.steps} steps, restarted after each"
        )
        if group.rank == 0:
            for n, row in rows.items():
                kept = f"{row['parameters and gradients']:.1f} + {row['state']:.1f}"
                ddp = 8 * (int(n) - 1) / int(n)
                print(f"N = {n}: keeps {kept} bytes per parameter, sends {row['sent']:.1f}; DDP {ddp:.1f}")


if __name__ == "__main__":
    run(main, Config())
