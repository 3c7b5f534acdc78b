"""What people ask about FSDP2: tied weights, buffers, moving averages, bfloat16, HSDP's all-reduces.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_19/proof_asked.py
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_equal, gradients

FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 3
    decay: float = 0.9
    micro_batches: int = 4
    tolerance: float = 1e-12  # float64


class TinyLM(nn.Module):
    """The head is the embedding; a table of positions is in no state dict. 41 tokens: shards are uneven."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(41, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 41, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("table", torch.empty(6, 1), persistent=False)
        self.fill_table()

    def fill_table(self) -> None:
        with torch.no_grad():
            self.table.copy_(torch.arange(6).view(6, 1).cos())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.tokens(x) + self.table)))


def new_model(group: Group, cfg: Config) -> TinyLM:
    torch.manual_seed(cfg.seed)
    return TinyLM().double().to(group.device)


def loss_of(model: nn.Module, group: Group, alone: bool = False) -> torch.Tensor:
    """The mean over all rows, or over this rank's."""
    rows = torch.arange(6 * 2 * group.world_size, device=group.device).view(-1, 6) % 41
    rows = rows if alone else rows[group.rank :: group.world_size]
    return F.cross_entropy(model(rows).flatten(0, 1), rows.roll(-1, 1).flatten())


def shard(model: TinyLM, mesh: DeviceMesh) -> TinyLM:
    fully_shard([model.tokens, model.head], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tied_weights(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """Two units cannot share a parameter. One call for both modules makes one unit of them."""
    model = new_model(group, cfg)
    for module in (model.tokens, model.head, model):
        fully_shard(module, mesh=mesh)
    try:
        loss_of(model, group)
    except ValueError as error:
        if "is shared with a parameter already managed by another FSDP group" not in str(error):
            raise
    else:
        raise CourseError("two units for one tied weight should be refused")
    model = shard(new_model(group, cfg), mesh)
    alone = new_model(group, cfg)
    loss_of(model, group).backward()
    loss_of(alone, group, alone=True).backward()
    found = [(name, p.grad.full_tensor()) for name, p in model.named_parameters()]
    assert_all_equal("tied:", found, gradients(alone), cfg.tolerance)
    if model.head.weight is not model.tokens.weight:
        raise CourseError("the weights are no longer tied")
    print_on_rank_0("tied weights: two units are refused; fully_shard([tokens, head]) equals one process")


def buffers(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """Memory from to_empty is arbitrary, and nobody sends a buffer that is in no state dict."""
    with torch.device("meta"):
        model = shard(TinyLM().double(), mesh)
    torch.use_deterministic_algorithms(True)  # then memory that nobody has written holds NaN
    model.to_empty(device=group.device)
    torch.use_deterministic_algorithms(False)
    whole = new_model(group, cfg).state_dict() if group.rank == 0 else {}
    set_model_state_dict(model, whole, options=FROM_RANK_0)
    with torch.no_grad():
        before = loss_of(model, group)
        model.fill_table()
        after = loss_of(model, group)
        expected = loss_of(new_model(group, cfg), group)
    if not before.isnan():
        raise CourseError("the table should be without values")
    assert_equal("after fill_table: loss", after, expected, cfg.tolerance)
    print_on_rank_0("a buffer that no state dict has: the loss is nan; filled again: as one process")


def moving_average(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """Each rank averages its shards. from_local must be told the whole shape: shards are uneven."""
    model = shard(new_model(group, cfg), mesh)
    alone = new_model(group, cfg)
    averages = [p.to_local().detach().clone() for p in model.parameters()]
    expected = [p.detach().clone() for p in alone.parameters()]
    optimizers = [torch.optim.SGD(each.parameters(), 0.5) for each in (model, alone)]
    for _ in range(cfg.steps):
        loss_of(model, group).backward()
        loss_of(alone, group, alone=True).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for average, p in zip(averages, model.parameters(), strict=True):
            average.lerp_(p.to_local().detach(), 1 - cfg.decay)
        for average, p in zip(expected, alone.parameters(), strict=True):
            average.lerp_(p.detach(), 1 - cfg.decay)
    for average, p, truth in zip(averages, model.parameters(), expected, strict=True):
        layout = {"shape": p.shape, "stride": p.stride()}
        whole = DTensor.from_local(average, p.device_mesh, p.placements, **layout).full_tensor()
        assert_equal("moving average", whole, truth, cfg.tolerance)
    guessed = DTensor.from_local(averages[0], mesh, model.tokens.weight.placements).shape[0]
    if guessed == 41:
        raise CourseError("from_local alone should guess a wrong shape")
    print_on_rank_0(
        f"moving average by shards: equals one process; from_local alone takes 41 rows for {guessed}"
    )


def bfloat16_parameters(mesh: DeviceMesh, group: Group) -> None:
    """The policy casts for the computation. What is kept, and Adam's state, have the parameters' dtype."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    moved, kept = {}, {}
    for dtype in (torch.bfloat16, torch.float32):
        layer = nn.Linear(8, 8, bias=False, dtype=dtype, device=group.device)
        nn.init.ones_(layer.weight)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0)
        for _ in range(10):
            layer(torch.ones(2, 8, device=group.device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        kept[dtype] = optimizer.state[layer.weight]["exp_avg"].dtype
        moved[dtype] = 1 - layer.weight.full_tensor().float().mean().item()
    if moved[torch.bfloat16] != 0 or abs(moved[torch.float32] - 0.01) > 1e-4:
        raise CourseError(f"ten steps of 0.001 moved the weights by {moved}")
    assert all(state == dtype for dtype, state in kept.items()), kept
    print_on_rank_0("ten steps of 0.001: weights in bfloat16 move by 0.00, in float32 by 0.01")


def accumulation_of_replicas(group: Group, cfg: Config) -> None:
    """HSDP: reduce-scatter each micro-batch, and all-reduce between the replicas after the last."""
    names = ("replicate", "shard")
    mesh = init_device_mesh(group.device.type, (group.world_size, 1), mesh_dim_names=names)
    alone = new_model(group, cfg)
    loss_of(alone, group, alone=True).backward()
    counts = {}
    for always in (True, False):
        model = shard(new_model(group, cfg), mesh)
        with record() as log:
            for number in range(cfg.micro_batches):
                model.set_requires_all_reduce(always or number == cfg.micro_batches - 1)
                (loss_of(model, group) / cfg.micro_batches).backward()
        found = [(name, p.grad.full_tensor()) for name, p in model.named_parameters()]
        assert_all_equal("HSDP, accumulated:", found, gradients(alone), cfg.tolerance)
        counts[always] = log.count("all_reduce")
    if counts[True] != cfg.micro_batches * counts[False]:
        raise CourseError(f"HSDP: {counts[True]} and {counts[False]} all-reduces")
    print_on_rank_0(
        f"HSDP, {cfg.micro_batches} micro-batches: {counts[True]} all-reduces, "
        f"with set_requires_all_reduce(last) {counts[False]}; the gradient is that of one process"
    )


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        tied_weights(mesh, group, cfg)
        buffers(mesh, group, cfg)
        moving_average(mesh, group, cfg)
        bfloat16_parameters(mesh, group)
        accumulation_of_replicas(group, cfg)


if __name__ == "__main__":
    run(main, Config())
