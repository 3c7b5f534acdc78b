"""FSDP in use: accumulation, activation checkpointing, prefetching, the meta device, a trap, torch's tools.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_practice.py
Written by:  notebooks/19_fsdp.ipynb
"""

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils.checkpoint import checkpoint

from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.models import BlockNet
from shared.training.parity import assert_all_equal, gradients, parameters
from shared.training.storages import StorageRecorder


@dataclass(frozen=True)
class Config:
    seed: int = 19
    global_batch: int = 840  # divides by every world size up to 8
    micro_batches: int = 4
    tolerance: float = 1e-12  # float64


class ScaledNet(BlockNet):
    """With a buffer that no checkpoint holds, as tables of positions are in many models."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1)) * self.scale
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.last(x)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """A way into the model that is not ``forward``."""
        return self.first(x.flatten(1))


def new_net(cfg: Config, group: Group, checkpointed: bool = False) -> ScaledNet:
    torch.manual_seed(cfg.seed)
    return ScaledNet(checkpointed).to(group.device, torch.float64)


def shard(net: ScaledNet, mesh: DeviceMesh) -> ScaledNet:
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


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
        model = shard(new_net(cfg, group), mesh)
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
            f"between micro-batches a rank holds {between[every]:.1f} S"
        )
    more = between[False] - between[True]
    if abs(more - (1 - 1 / group.world_size)) > 0.1:
        raise CourseError(
            f"whole gradients were to take 1 S in place of 1/N S; the difference is {more:.2f} S"
        )


def activations(mesh: DeviceMesh, group: Group, cfg: Config) -> dict[str, float]:
    """The peak with and without activation checkpointing, and the collectives."""
    x, y = own_batch(cfg, group)
    peaks, counts = {}, {}
    for checkpointed in (False, True):
        model = shard(new_net(cfg, group, checkpointed), mesh)
        with record() as log, StorageRecorder(model.parameters()) as memory:
            F.cross_entropy(model(x), y).backward()
        assert_all_equal("checkpointed:", whole(model), reference(cfg, group), cfg.tolerance)
        peaks[checkpointed] = memory.peak
        counts[checkpointed] = dict(log.counts())
    if counts[True] != counts[False]:
        raise CourseError(f"recomputing gathered again: {counts}")
    if peaks[True] > 0.95 * peaks[False]:
        raise CourseError(f"activation checkpointing saved too little: {peaks}")
    print_on_rank_0(
        f"activation checkpointing: peak {peaks[False] / 1e6:.1f} -> {peaks[True] / 1e6:.1f} MB, the same "
        f"{counts[True]['all_gather']} all-gathers and {counts[True]['reduce_scatter']} reduce-scatters"
    )
    return {"plain": peaks[False], "checkpointed": peaks[True]}


def forward_order(model: ScaledNet, x: torch.Tensor) -> list[str]:
    """Calls and computing blocks of a forward pass, in order."""
    log: CommRecord = record()
    handles = []
    for index, block in enumerate(model.blocks):
        mark = f"block {index}"
        handles.append(block.up.register_forward_hook(lambda *_, mark=mark: log.mark(mark)))
    model.reshard()  # the root stays whole after a forward without a backward
    with log, torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return log.order()


def prefetching(mesh: DeviceMesh, group: Group, cfg: Config) -> dict[str, list[str]]:
    """Where all-gathers stand among the blocks' forward passes, by default and prefetched."""
    x, _ = own_batch(cfg, group)
    orders = {}
    model = shard(new_net(cfg, group), mesh)
    orders["by default"] = forward_order(model, x)
    for block, following in zip(model.blocks, model.blocks[1:], strict=False):
        block.set_modules_to_forward_prefetch([following])
    orders["prefetched"] = forward_order(model, x)
    for how, order in orders.items():
        before = order[: order.index("block 0")].count("all_gather")
        if before != {"by default": 2, "prefetched": 3}[how]:
            raise CourseError(f"{how}: {before} all-gathers before block 0 computes")
        print_on_rank_0(f"all-gathers launched before block 0 computes, {how}: {before}")
    return orders


def from_meta(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """No rank ever holds the whole model: shards without memory, then memory, then rank 0's values."""
    x, _ = own_batch(cfg, group)
    with torch.device("meta"):
        model = ScaledNet().double()
    shard(model, mesh)
    assert all(p.is_meta for p in model.parameters())
    torch.use_deterministic_algorithms(True)  # then memory that nobody has written holds NaN
    model.to_empty(device=group.device)
    torch.use_deterministic_algorithms(False)
    if not all(p.to_local().isnan().all() for p in model.parameters()):
        raise CourseError("to_empty was to leave all parameters without a value")
    full = new_net(cfg, group).state_dict() if group.rank == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full, options=options)
    found = [(name, p.full_tensor()) for name, p in model.named_parameters()]
    assert_all_equal("from rank 0:", found, parameters(new_net(cfg, group)), 0.0)
    with torch.no_grad():
        if not model(x).isnan().all():
            raise CourseError("the buffer was to be without a value")
        model.scale.fill_(0.5)
        torch.testing.assert_close(model(x), new_net(cfg, group)(x), rtol=0, atol=cfg.tolerance)
    print_on_rank_0("from meta: all parameters are rank 0's; the output is NaN until the buffer is set, too")


def around_the_hooks(mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """``model.forward(x)`` calls no hooks, so nobody gathers."""
    x, _ = own_batch(cfg, group)
    model = shard(new_net(cfg, group), mesh)
    try:
        model.forward(x)
    except RuntimeError as error:
        if "mixed torch.Tensor and DTensor" not in str(error):
            raise
        print_on_rank_0("model.forward(x): got mixed torch.Tensor and DTensor")
    else:
        raise CourseError("model.forward(x) was to fail")
    register_fsdp_forward_method(model, "embed")
    torch.testing.assert_close(model.embed(x), new_net(cfg, group).embed(x), rtol=0, atol=cfg.tolerance)
    print_on_rank_0("model.embed(x), registered as a forward method: equal to one process")


def torch_tools(mesh: DeviceMesh, group: Group, cfg: Config) -> dict[str, int]:
    """What torch's own instruments say of a step, beside ours."""
    x, y = own_batch(cfg, group)
    model: FSDPModule = shard(new_net(cfg, group), mesh)
    with CommDebugMode() as theirs, warnings.catch_warnings(action="ignore"):  # its own views make FSDP warn
        F.cross_entropy(model(x), y).backward()
    model.zero_grad()
    with record() as log:
        F.cross_entropy(model(x), y).backward()
    counted = {
        str(op).rpartition(".")[2]: number for op, number in theirs.get_comm_counts().items() if number
    }
    if sum(counted.values()) != len(log.calls):
        raise CourseError(f"CommDebugMode counts {counted}, our record {dict(log.counts())}")
    print_on_rank_0(f"CommDebugMode: {counted}")
    model.zero_grad()
    with StorageRecorder([*model.parameters(), x, y]) as memory:
        F.cross_entropy(model(x), y).backward()
    model.zero_grad()
    tracker = MemTracker()
    tracker.track_external(model, x, y)
    with tracker:
        F.cross_entropy(model(x), y).backward()
    peak = tracker.get_tracker_snapshot("peak")[group.device]["Total"]
    if abs(peak / memory.peak - 1) > 0.1:
        raise CourseError(f"MemTracker's peak is {peak:,} bytes, ours {memory.peak:,}")
    print_on_rank_0(f"MemTracker: peak {peak / 1e6:.1f} MB; our recorder: {memory.peak / 1e6:.1f} MB")
    return {"MemTracker": peak, "ours": memory.peak}


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        accumulation(mesh, group, cfg)
        peaks = activations(mesh, group, cfg)
        orders = prefetching(mesh, group, cfg)
        from_meta(mesh, group, cfg)
        around_the_hooks(mesh, group, cfg)
        tools = torch_tools(mesh, group, cfg)
        record_results("lab_19_practice", {"peaks": peaks, "orders": orders, "tools": tools})


if __name__ == "__main__":
    run(main, Config())
