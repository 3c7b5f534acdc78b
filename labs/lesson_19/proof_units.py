"""What the choice of units does to the peak of memory, to the collectives, and to the bytes on the wire.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_19/proof_units.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shared.comm.kernel import wire_bytes
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.models import BlockNet
from shared.training.storages import StorageRecorder


@dataclass(frozen=True)
class Config:
    width: int = 96
    blocks: int = 4
    inputs: int = 4  # few per rank, so that activations hardly count
    slack: float = 0.05  # rows that are added, and gloo's headers, as a fraction of what is sent


class UnitRecorder(StorageRecorder):
    """Also notes in ``unsharded`` the most of ``model``'s parameters that were whole at once, in bytes."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__([*model.parameters(), *optimizer.state.values()])
        self.model = model
        self.unsharded = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        whole = [p for p in self.model.parameters() if not isinstance(p, DTensor)]
        # Without the rows that FSDP2 adds where the number of ranks does not divide them.
        now = sum(p.nbytes for p in whole if p.untyped_storage().nbytes() > 0)
        self.unsharded = max(self.unsharded, now)
        return result


def one_unit(net: BlockNet) -> list[nn.Module]:
    return []


def one_per_block(net: BlockNet) -> list[nn.Module]:
    return list(net.blocks)


def one_per_layer(net: BlockNet) -> list[nn.Module]:
    return [layer for block in net.blocks for layer in (block.up, block.down)]


def size(module: nn.Module) -> int:
    """Bytes of all parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def formula(choose: Callable, again: bool, cfg: Config) -> dict[str, int]:
    """What is expected of a step: bytes of whole parameters held at most, collectives, bytes gathered.

    The root holds what no other unit holds, and by default stays whole from forward to backward. Each
    other unit is gathered for forward, and ``again`` for backward if it was freed in between.
    """
    net = BlockNet(cfg.width, cfg.blocks)
    units = choose(net)
    root = size(net) - sum(size(unit) for unit in units)
    if not again:
        return {"unsharded": size(net), "all_gather": 1 + len(units), "reduce_scatter": 1 + len(units)} | {
            "gathered": size(net)
        }
    return {
        "unsharded": root + max([size(unit) for unit in units], default=0),
        "all_gather": 1 + 2 * len(units),
        "reduce_scatter": 1 + len(units),
        "gathered": 2 * size(net) - root,
    }


def measure(model: nn.Module, group: Group, cfg: Config) -> dict[str, float]:
    """What forward and backward hold, Adam's moments included, call and send, after two whole steps."""
    x = torch.randn(cfg.inputs, 64, device=group.device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):  # after the first one DDP makes its buckets anew
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()  # what another rank has not received yet would be counted later
    before = wire_bytes()
    with record() as log, UnitRecorder(model, optimizer) as memory:
        model(x).square().mean().backward()
    dist.barrier()
    after = wire_bytes()
    row = {"peak": memory.peak, "unsharded": memory.unsharded, "by_rule": log.by_rule()}
    row["all_gather"] = log.count("all_gather")
    row["reduce_scatter"] = log.count("reduce_scatter")
    sent = torch.tensor([0 if before is None else after - before], dtype=torch.float64, device=group.device)
    dist.all_reduce(sent)
    row["wire"] = sent.item() / group.world_size  # a mean: ranks share the work of an all-reduce unevenly
    return row


def check_traffic(name: str, row: dict, gathered: int, reduced: int, group: Group, cfg: Config) -> None:
    """An all-gather and a reduce-scatter of B bytes each send (N - 1) / N * B; gloo sends two to reduce."""
    part = (group.world_size - 1) / group.world_size
    expected = {"by_rule": part * (gathered + reduced), "wire": part * (gathered + 2 * reduced)}
    if group.backend != "gloo" or row["wire"] == 0:
        del expected["wire"]
    for kind, number in expected.items():
        if abs(row[kind] / number - 1) > cfg.slack:
            raise CourseError(f"{name}: {kind} {row[kind]:,.0f} bytes sent, by the formula {number:,.0f}")


def tell(name: str, row: dict, everything: int) -> None:
    print_on_rank_0(
        f"{name:36} peak {row['peak'] / everything:.2f} S, whole {row['unsharded'] / everything:.2f} S, "
        f"{row['all_gather']:2} + {row['reduce_scatter']} calls, "
        f"sent {row['by_rule'] / everything:.2f} S by rule, {row['wire'] / everything:.1f} S in fact"
    )


def check_peaks(rows: list[dict], ddp: dict[str, dict], everything: int, ranks: int) -> None:
    """Smaller units have lower peaks; what is freed after forward is gathered once more for backward."""
    freed, kept = rows[::2], rows[1::2]
    for one, block, layer in (freed, kept):
        assert one["peak"] > block["peak"] > layer["peak"]
    for less, more in zip(freed[1:], kept[1:], strict=True):
        assert less["peak"] < more["peak"] and less["all_gather"] == 2 * more["all_gather"] - 1
    two_copies, one_copy = (row["peak"] / everything for row in ddp.values())
    assert abs(two_copies - 5) < 0.05  # parameters, two moments, gradients, and gradients again in buckets
    assert 4 <= one_copy < 4.2
    assert 1.9 + 3 / ranks < freed[0]["peak"] / everything < 2.1 + 4 / ranks  # two whole; gloo: four shards


def without_prefetching(mesh: DeviceMesh, group: Group, cfg: Config) -> dict[str, float]:
    """A unit per block; in the backward pass no unit asks for the next one."""
    model = BlockNet(cfg.width, cfg.blocks).to(group.device)
    units = [*one_per_block(model), model]
    for unit in units:
        fully_shard(unit, mesh=mesh)
        unit.set_modules_to_backward_prefetch([unit])  # in place of the next one: it is there already
    return measure(model, group, cfg)


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        everything = size(BlockNet(cfg.width, cfg.blocks))
        ddp = {}
        for name, view in (("DDP", False), ("DDP, gradients are views", True)):
            net = BlockNet(cfg.width, cfg.blocks).to(group.device)
            model = DistributedDataParallel(net, gradient_as_bucket_view=view)
            ddp[name] = measure(model, group, cfg)
            by_formula = 2 * (group.world_size - 1) / group.world_size * everything
            if abs(ddp[name]["by_rule"] / by_formula - 1) > 0.01:
                raise CourseError(f"{name}: sent {ddp[name]['by_rule']:,.0f} bytes by rule")
            tell(name, ddp[name], everything)
        rows = []
        for choose in (one_unit, one_per_block, one_per_layer):
            for again in (True, False):
                model = BlockNet(cfg.width, cfg.blocks).to(group.device)
                reshard = None if again else False  # None, the default, is True for all units but the root
                for unit in choose(model):
                    fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
                row = measure(fully_shard(model, mesh=mesh, reshard_after_forward=reshard), group, cfg)
                name = f"{choose.__name__.replace('_', ' ')}, {'reshard' if again else 'keep'} after forward"
                expected = formula(choose, again, cfg)
                for kind in ("unsharded", "all_gather", "reduce_scatter"):
                    if row[kind] != expected[kind]:
                        raise CourseError(f"{name}: {kind} {row[kind]:,}, by the formula {expected[kind]:,}")
                check_traffic(name, row, expected["gathered"], everything, group, cfg)
                tell(name, row, everything)
                rows.append({"units": choose.__name__, "again": again} | row)
        check_peaks(rows, ddp, everything, group.world_size)
        alone = without_prefetching(mesh, group, cfg)
        tell("one per block, without prefetching", alone, everything)
        saved = (rows[2]["peak"] - alone["peak"]) / everything
        if saved < 0.1:
            raise CourseError(
                f"without prefetching the peak should be lower by the next unit, not {saved:.2f} S"
            )
        record_results("19_units", {"rows": rows, "ddp": ddp, "everything": everything})


if __name__ == "__main__":
    run(main, Config())
