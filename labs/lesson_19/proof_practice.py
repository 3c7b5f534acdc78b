"""FSDP in use: accumulation, activations, torch.compile, Muon.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_19/proof_practice.py
"""

import copy
import logging
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.flops import MatmulFlops
from shared.training.models import BlockNet
from shared.training.parity import assert_all_equal, assert_equal, gradients
from shared.training.storages import StorageRecorder

import lab_19_torch as script
from lesson_19.sharding import shard_units


@dataclass(frozen=True)
class Config:
    seed: int = 19
    global_batch: int = 840  # divides by every world size up to 8
    micro_batches: int = 4
    tolerance: float = 1e-12  # float64


class Net(BlockNet):
    """Recomputes the activations of its blocks in the backward pass, if it is ``checkpointed``."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.last(x)


def new_net(cfg: Config, group: Group, checkpointed: bool = False) -> Net:
    torch.manual_seed(cfg.seed)
    return Net(checkpointed).to(group.device, torch.float64)


def own_batch(cfg: Config, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch(load_images(), 0, cfg.global_batch, group.device)
    return x[group.rank :: group.world_size], y[group.rank :: group.world_size]


def whole(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(f"{name} gradient", p.grad.full_tensor()) for name, p in model.named_parameters()]


def reference(cfg: Config, group: Group) -> list[tuple[str, torch.Tensor]]:
    """Gradients of one process that has the whole batch."""
    alone = new_net(cfg, group)
    x, y = batch(load_images(), 0, cfg.global_batch, group.device)
    F.cross_entropy(alone(x), y).backward()
    return [(f"{name} gradient", gradient) for name, gradient in gradients(alone)]


def accumulation(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """Micro-batches with a reduce-scatter in each of them, and with one in the last only."""
    x, y = own_batch(cfg, group)
    size = sum(p.nbytes for p in new_net(cfg, group).parameters())
    units = 1 + len(new_net(cfg, group).blocks)
    between: dict[bool, float] = {}
    for every in (True, False):
        model = shard_units(new_net(cfg, group), mesh)
        memory = StorageRecorder(model.parameters())
        with record() as log, memory:
            for part in range(cfg.micro_batches):
                last = part == cfg.micro_batches - 1
                model.set_requires_gradient_sync(every or last)
                chosen = slice(part, None, cfg.micro_batches)
                loss = F.cross_entropy(model(x[chosen]), y[chosen], reduction="sum")
                (loss * group.world_size / cfg.global_batch).backward()
                del loss
                if part == 0:
                    held = memory.bytes_alive() - x.untyped_storage().nbytes()
                    between[every] = held / size
        assert_all_equal(f"accumulation, {every}:", whole(model), reference(cfg, group), cfg.tolerance)
        reduces = log.count("reduce_scatter")
        if reduces != units * (cfg.micro_batches if every else 1):
            raise CourseError(f"accumulation: {reduces} reduce-scatters of {units} units")
        how = "every micro-batch" if every else "the last one only"
        print_on_rank_0(
            f"accumulation, gradients reduced in {how}: {reduces} reduce-scatters; "
            f"between micro-batches a rank holds {between[every]:.1f} S of parameters and gradients"
        )
    more = between[False] - between[True]
    if abs(more - (1 - 1 / group.world_size)) > 0.1:
        raise CourseError(
            f"whole gradients should take 1 S in place of 1/N S; the difference is {more:.2f} S"
        )


def activations(mesh: DeviceMesh, group: Group, cfg: Config) -> dict[str, float]:
    """The peak with the whole batch at once, in micro-batches, and with activation checkpointing."""
    x, y = own_batch(cfg, group)
    peaks, counts = {}, {}
    for way, parts in (("plain", 1), ("micro-batches", cfg.micro_batches), ("checkpointed", 1)):
        model = shard_units(new_net(cfg, group, way == "checkpointed"), mesh)
        with record() as log, StorageRecorder([*model.parameters(), x, y]) as memory:
            for part in range(parts):
                loss = F.cross_entropy(model(x[part::parts]), y[part::parts], reduction="sum")
                (loss * group.world_size / cfg.global_batch).backward()
                del loss
        assert_all_equal(f"{way}:", whole(model), reference(cfg, group), cfg.tolerance)
        peaks[way] = memory.peak
        counts[way] = log.counts()
        calls = f"{counts[way]['all_gather']} all-gathers, {counts[way]['reduce_scatter']} reduce-scatters"
        print_on_rank_0(f"activations, {way}: peak {memory.peak / 1e6:.1f} MB; {calls}")
    if counts["checkpointed"] != counts["plain"]:
        raise CourseError(f"recomputing gathered again: {counts}")
    for way in ("micro-batches", "checkpointed"):
        if peaks[way] > 0.95 * peaks["plain"]:
            raise CourseError(f"activations, {way}: saved too little: {peaks}")
    return peaks


class PlainBlock(script.Block):
    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.compute(x, table)


class CheckpointedBlock(script.Block):
    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.compute, x, table, use_reentrant=False)


def selective(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """What the script's GPT holds, computes and sends: nothing is recomputed, everything, or no product."""
    seen: dict[str, dict] = {}
    kinds = {"nothing": PlainBlock, "all": CheckpointedBlock, "all but matrix products": script.Block}
    for recomputed, kind in kinds.items():
        torch.manual_seed(cfg.seed)
        model = script.GPT().to(group.device, torch.float64)
        for block in model.blocks:
            block.__class__ = kind
        shard_units(model, mesh)
        tokens = script.own_rows(group.device, rows=128)
        held = StorageRecorder([*model.parameters(), tokens])
        with record() as log, held as memory, MatmulFlops() as flops:
            loss = script.loss_of(model, tokens)
            activations = memory.bytes_alive()
            loss.backward()
        gradient = model.tokens.weight.grad.full_tensor()
        products = flops.total / seen["nothing"]["flops"] if seen else 1.0
        seen[recomputed] = {
            "flops": flops.total,
            "held": activations,
            "calls": log.counts(),
            "gradient": gradient,
        }
        print_on_rank_0(
            f"GPT, {recomputed} recomputed: {activations / 1e6:.1f} MB wait for the backward pass; "
            f"{products:.2f} times the matrix products, {len(log.calls)} collectives"
        )
    plain, full, some = seen.values()
    for other in (full, some):
        assert_equal("GPT, recomputed: gradient", other["gradient"], plain["gradient"], cfg.tolerance)
        assert other["calls"] == plain["calls"], seen
    if not (full["held"] < some["held"] < 0.8 * plain["held"] and some["flops"] == plain["flops"]):
        raise CourseError(f"selective checkpointing should save memory and repeat no product: {seen}")


def compiled(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """The order of the script: a block checkpoints inside, is compiled, then becomes a unit."""
    torch.manual_seed(cfg.seed)
    alone = script.GPT().to(group.device, torch.float64)
    model = copy.deepcopy(alone)
    tokens = torch.cat([script.own_rows(group.device, rows=4) for _ in range(group.world_size)])
    torch._dynamo.reset()
    logging.getLogger("torch._higher_order_ops").setLevel(logging.ERROR)  # a note on selective checkpointing
    for block in model.blocks:
        # fullgraph: an error in place of a graph in pieces. A script leaves the backend as it is.
        block.compile(backend="eager", fullgraph=True)
    shard_units(model, mesh)
    script.loss_of(model, tokens.chunk(group.world_size)[group.rank]).backward()
    script.loss_of(alone, tokens).backward()
    expected = [(f"{name} gradient", gradient) for name, gradient in gradients(alone)]
    assert_all_equal("compiled", whole(model), expected, cfg.tolerance)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    if graphs < 1:
        raise CourseError("nothing was compiled")
    print_on_rank_0(
        "torch.compile (backend eager), then fully_shard: "
        f"{graphs} graph for all blocks, equal to one process"
    )


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """What Muon makes of a whole gradient, here exactly: all singular values become 1."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


def muon(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """An optimizer of whole matrices. On DTensors torch's gathers for each product; on shards it is wrong."""
    torch.manual_seed(cfg.seed)
    alone = nn.Linear(16, 16, bias=False).to(group.device)
    model = fully_shard(copy.deepcopy(alone), mesh=mesh)
    x = torch.randn(8 * group.world_size, 16).to(group.device)
    alone(x).square().mean().backward()
    model(x.chunk(group.world_size)[group.rank]).square().mean().backward()
    own = model.weight.grad.to_local()
    rows = orthogonalized(alone.weight.grad).chunk(group.world_size)[group.rank]
    off = ((orthogonalized(own) - rows).norm() / rows.norm()).item()
    for each in (alone, model):
        optimizer = torch.optim.Muon(each.parameters(), lr=0.1)
        with record() as log:
            optimizer.step()
    error = (model.weight.full_tensor() - alone.weight).abs().max().item()
    if error > 0.01 or off < 0.3:  # it computes in bfloat16
        raise CourseError(f"Muon: on DTensors off by {error:.4f}, on local rows by {off:.2f}")
    print_on_rank_0(
        "Muon on DTensors: equal to one process up to bfloat16 rounding, "
        f"{log.count('all_gather')} all-gathers for a matrix; on each rank's rows alone it is another step"
    )


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        accumulation(mesh, group, cfg)
        activations(mesh, group, cfg)
        selective(mesh, group, cfg)
        compiled(mesh, group, cfg)
        muon(mesh, group, cfg)


if __name__ == "__main__":
    run(main, Config())
