"""DDP, ZeRO-1 in three ways and ZeRO-2 equal one process; what each rank keeps and sends is counted.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_18/proof_by_hand.py
"""

import copy
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shared.comm.kernel import wire_bytes
from shared.comm.record import record
from shared.comm.ring import ring_all_gather, ring_reduce_scatter
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import batch, load_images, shareable
from shared.training.parity import assert_all_equal, assert_equal, parameters

from lab_18_zero_1 import Zero1


@dataclass(frozen=True)
class Config:
    steps: int = 3
    batch: int = 100  # images, or some more
    max_norm: float = 0.05
    tolerance: float = 1e-12  # float64
    slack: float = 0.03  # padding, as a fraction of what is held or sent
    headers: float = 0.1  # gloo's, as a fraction of what is sent


OPTIMIZERS = {
    "Adam": lambda params: torch.optim.Adam(params, 0.01),
    "SGD with momentum": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9),
}


class InDDP:
    """A plain optimizer: DDP averages all gradients on all ranks, and each rank steps everything."""

    def __init__(self, net: nn.Module, build: Callable, group: dist.ProcessGroup):
        self.model = DistributedDataParallel(net, process_group=group, gradient_as_bucket_view=True)
        self.params = [p for p in net.parameters() if p.requires_grad]
        self.optimizer = self.sharded_by(build, group)

    def sharded_by(self, build: Callable, group: dist.ProcessGroup) -> torch.optim.Optimizer:
        return build(self.params)

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class TorchsZero1(InDDP):
    """Each parameter, whole, belongs to one rank, which steps it and sends it to the others."""

    def sharded_by(self, build: Callable, group: dist.ProcessGroup) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(self.params, build, process_group=group)


class OnRings(Zero1):
    """ZeRO-1 with the two halves of lesson 05's ring, for ranks 0 .. n - 1 of the world."""

    def average_gradient(self) -> torch.Tensor:
        return ring_reduce_scatter(self.gradient, self.ranks) / self.ranks

    def gather_parameters(self) -> None:
        ring_all_gather(self.flat, self.ranks)


class Zero2:
    """As ``Zero1``, but no rank keeps a gradient that its optimizer does not need.

    Each parameter is cut by itself: its gradient can leave as soon as backward has computed it. Each
    trainable parameter must take part in each backward.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], build: Callable, group: dist.ProcessGroup | None = None
    ):
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.params = [p for p in params if p.requires_grad]
        self.shards: dict[nn.Parameter, nn.Parameter] = {}
        for p in self.params:
            own = self.padded(p.detach()).chunk(self.ranks)[dist.get_rank(group)]
            self.shards[p] = nn.Parameter(own.clone())
            p.register_post_accumulate_grad_hook(self.reduce)
        self.optimizer = build(list(self.shards.values()))

    def padded(self, t: torch.Tensor) -> torch.Tensor:
        """(N * length,): the numbers of ``t``, then zeros."""
        return F.pad(t.flatten(), (0, -t.numel() % self.ranks))

    def reduce(self, p: nn.Parameter) -> None:
        """Autograd calls this when the gradient of ``p`` is complete: keep this rank's shard of the mean."""
        shard = self.shards[p]
        mean = torch.empty_like(shard)
        dist.reduce_scatter_tensor(mean, self.padded(p.grad), op=dist.ReduceOp.AVG, group=self.group)
        p.grad = None
        if shard.grad is None:
            shard.grad = mean
        else:
            shard.grad += mean  # another backward since the last step

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        for p, shard in self.shards.items():
            flat = shard.new_empty(self.ranks * len(shard))
            dist.all_gather_into_tensor(flat, shard.detach(), group=self.group)
            p.copy_(flat[: p.numel()].view_as(p))

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


# {name: (class, halves of an all-reduce by rule, halves that gloo sends)}. In place of a reduce-scatter gloo
# does an all-reduce.
WAYS = {
    "DDP": (InDDP, 2, 2),
    "torch's ZeRO-1": (TorchsZero1, 3, 3),
    "ZeRO-1": (Zero1, 2, 3),
    "ZeRO-1 on rings": (OnRings, 2, 2),
    "ZeRO-2": (Zero2, 2, 3),
}


class Branches(nn.Module):
    """(batch, 1, 8, 8) to (batch, 64): a frozen layer, then 12 equal ones side by side, and a factor.

    12 divides by 1, 2, 3 and 4. The 49,921 trainable numbers do not: ``Zero1`` has to pad them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.branches = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.frozen(x.flatten(1)))
        return self.factor * sum(torch.tanh(branch(x)) for branch in self.branches)


def build_model(group: Group, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The same on each rank."""
    torch.manual_seed(18)
    return Branches().to(group.device, dtype)


def bytes_of(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of memory behind the tensors: each storage once, whole, however many views it has."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def gradients_of(ours: InDDP | Zero1 | Zero2) -> list[torch.Tensor | None]:
    """All gradients that a rank keeps: of the parameters, and of its shards."""
    return [p.grad for p in (*ours.params, *ours.optimizer.param_groups[0]["params"])]


def backward(net: nn.Module, x: torch.Tensor, y: torch.Tensor, micro_batches: int = 1) -> None:
    """Gradients of the mean loss, in so many equal parts. DDP averages after the last one."""
    for part in range(micro_batches):
        chosen = slice(part, None, micro_batches)
        waits = isinstance(net, DistributedDataParallel) and part < micro_batches - 1
        with net.no_sync() if waits else nullcontext():
            (F.cross_entropy(net(x[chosen]), y[chosen]) / micro_batches).backward()


def reference(name: str, x: torch.Tensor, y: torch.Tensor, cfg: Config, group: Group) -> list:
    """One process with the whole batch and the whole optimizer: its named parameters after each step."""
    net = build_model(group)
    optimizer = OPTIMIZERS[name](net.parameters())
    after = []
    for _ in range(cfg.steps):
        optimizer.zero_grad()
        backward(net, x, y)
        optimizer.step()
        after.append([(name, p.detach().clone()) for name, p in net.named_parameters()])
    return after


def train(
    way: str, name: str, micro_batches: int, members, x, y, alone: list, cfg: Config, group: Group
) -> dict:
    """Train on the ranks of ``members`` as ``alone`` was; return what this rank keeps and sends in a step."""
    n = dist.get_world_size(members)
    net = build_model(group)
    most = 0

    def look(_: nn.Parameter) -> None:
        nonlocal most
        most = max(most, bytes_of(gradients_of(ours)))

    trainable = [p for p in net.parameters() if p.requires_grad]
    for p in trainable:
        p.register_post_accumulate_grad_hook(look)  # before those of ZeRO-2
    kind = WAYS[way][0]
    ours = kind(net if issubclass(kind, InDDP) else net.parameters(), OPTIMIZERS[name], members)
    model = ours.model if isinstance(ours, InDDP) else net
    for step, expected in enumerate(alone):
        ours.zero_grad()
        dist.barrier(members)  # what another rank has not received yet would be counted later
        before = wire_bytes()
        with record() as log:
            backward(model, x[group.rank :: n], y[group.rank :: n], micro_batches)
            held = bytes_of(gradients_of(ours))
            ours.step()
        dist.barrier(members)
        after = wire_bytes()
        assert_all_equal(f"{way}, {name}, {n} ranks, step {step}:", parameters(net), expected, cfg.tolerance)
    inner = getattr(ours.optimizer, "optim", ours.optimizer)  # torch's class keeps the sharded one there
    moments = [t for state in inner.state.values() for t in state.values() if torch.is_tensor(t)]
    return {
        "size": sum(p.nbytes for p in trainable),
        "largest": max(p.nbytes for p in trainable),
        "parameters": bytes_of(trainable),
        "gradients": held,
        "most": max(most, held),
        "state": bytes_of(t for t in moments if t.dim()),
        "by_rule": log.by_rule(),
        "wire": None if before is None else after - before,
    }


def check(
    way: str, micro_batches: int, row: dict, members: dist.ProcessGroup, cfg: Config, group: Group
) -> None:
    """Hold what was counted against the formulas; what was sent, as a mean over the ranks."""
    n = dist.get_world_size(members)
    halves_by_rule, halves_on_wire = WAYS[way][1:]
    if way == "ZeRO-2":  # it reduces after each backward
        halves_by_rule += micro_batches - 1
        halves_on_wire += 2 * (micro_batches - 1)
    size = row["size"]
    gradients = size / n if way == "ZeRO-2" else size
    assert abs(row["gradients"] / gradients - 1) < cfg.slack, (
        f"{way}: gradients {row['gradients'] / size:.2f} S"
    )
    transient = row["largest"] if way == "ZeRO-2" else 0  # the gradient that is about to leave
    if not issubclass(WAYS[way][0], InDDP):
        assert row["most"] <= gradients * (1 + cfg.slack) + transient, (
            f"{way}: at most {row['most'] / size:.2f} S"
        )
    state = 2 * size if way == "DDP" else 2 * size / n
    assert abs(row["state"] / state - 1) < cfg.slack, f"{way}: state {row['state'] / size:.2f} S"
    assert abs(row["parameters"] / size - 1) < cfg.slack, (
        f"{way}: parameters {row['parameters'] / size:.2f} S"
    )
    if n == 1:
        return
    sent = torch.tensor([row["by_rule"], row["wire"] or 0.0], dtype=torch.float64, device=group.device)
    dist.all_reduce(sent, group=members)
    by_rule, wire = (sent / n / size * n / (n - 1)).tolist()
    assert abs(by_rule / halves_by_rule - 1) < cfg.slack, (
        f"{way}: {by_rule:.2f} halves of an all-reduce by rule"
    )
    if row["wire"] is not None and dist.get_backend(members) == "gloo":
        assert abs(wire / halves_on_wire - 1) < cfg.headers, f"{way}: {wire:.2f} halves of an all-reduce sent"
    row["wire"] = wire * (n - 1) / n * size


def tell(way: str, micro_batches: int, row: dict) -> None:
    size = row["size"]
    wire = "not known" if row["wire"] is None else f"{row['wire'] / size:.2f} S"
    most = f" (at most {row['most'] / size:.2f})" if way == "ZeRO-2" else ""
    kept = f"gradients {row['gradients'] / size:.2f} S{most}, state {row['state'] / size:.2f} S"
    sent = f"{row['by_rule'] / size:.2f} S by rule, {wire} over gloo"
    print_on_rank_0(f"{way:15}  {micro_batches}  {kept}, sends {sent}")


def groups_of(net: nn.Module) -> list[dict]:
    """Two parameter groups, as is usual: biases do not decay."""
    weights = [p for p in net.parameters() if p.dim() > 1]
    biases = [p for p in net.parameters() if p.dim() == 1]
    return [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]


def in_a_script(x: torch.Tensor, y: torch.Tensor, cfg: Config, group: Group) -> None:
    """``Zero1`` with what training scripts do: groups, a scheduler, clipping, either zero_grad, a reload."""
    for zero_grad in ("optimizer", "model"):
        alone = build_model(group)
        net = build_model(group)
        for p in net.parameters():
            if p.requires_grad:
                p.data += group.rank  # the ranks begin with different parameters
        plain = torch.optim.AdamW(groups_of(alone), lr=0.01)
        ours = Zero1(groups_of(net), lambda groups: torch.optim.AdamW(groups, lr=0.01))
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7) for optimizer in (plain, ours)]
        for step in range(cfg.steps):
            what = f"Zero1 in a script, {zero_grad}.zero_grad(), step {step}:"
            plain.zero_grad()
            (ours if zero_grad == "optimizer" else net).zero_grad()
            backward(alone, x, y)
            backward(net, x[group.rank :: group.world_size], y[group.rank :: group.world_size])
            expected = nn.utils.clip_grad_norm_(alone.parameters(), cfg.max_norm)
            norm = ours.clip_grad_norm_(cfg.max_norm)
            assert expected > cfg.max_norm, expected
            assert_equal(f"{what} norm", norm, expected, cfg.tolerance)
            plain.step()
            ours.step()
            for scheduler in schedulers:
                scheduler.step()
            ours.load_state_dict(copy.deepcopy(ours.state_dict()))
            assert_all_equal(what, parameters(net), parameters(alone), cfg.tolerance)
    share = slice(group.rank, None, group.world_size)
    for drops in (False, True):
        backward(net, x[share], y[share])
        ours.clip_grad_norm_(cfg.max_norm)
        if drops:
            net.zero_grad()
        backward(net, x[share], y[share])
        how = ", after net.zero_grad()" if drops else ""
        try:
            ours.step()
        except RuntimeError as error:
            told = error
        else:
            raise CourseError(f"Zero1 should have refused a backward pass after clipping{how}")
        ours.zero_grad()
    print_on_rank_0(f"Zero1, after one more backward pass: {told}")
    net.float()
    try:
        ours.step()
    except RuntimeError as error:
        print_on_rank_0(f"Zero1 in a script: equal to one process; after net.float(): {error}")
    else:
        raise CourseError("Zero1 should have refused a model that was cast after it")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        x, y = batch(load_images("digits"), 0, 2 * shareable(cfg.batch, group.world_size), group.device)
        alone = {name: reference(name, x, y, cfg, group) for name in OPTIMIZERS}
        rows = {}
        print_on_rank_0(f"{group.world_size} ranks, each way with 1 and with 2 backward passes in a step")
        for n in range(1, group.world_size + 1):
            members = dist.new_group(list(range(n)))
            if group.rank >= n:
                continue
            for way in WAYS:
                train(way, "SGD with momentum", 1, members, x, y, alone["SGD with momentum"], cfg, group)
                for micro_batches in (1, 2):
                    row = train(way, "Adam", micro_batches, members, x, y, alone["Adam"], cfg, group)
                    check(way, micro_batches, row, members, cfg, group)
                    rows[f"{way}, {micro_batches}, {n}"] = row
                    if n == group.world_size:
                        tell(way, micro_batches, row)
        in_a_script(x, y, cfg, group)
        print_on_rank_0("each way equals one process after every step")
        record_results("18_by_hand", rows)


if __name__ == "__main__":
    run(main, Config())
