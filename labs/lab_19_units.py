"""What the choice of units does to the peak of memory, and to the number of collectives.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_units.py
Written by:  notebooks/19_fsdp.ipynb
"""

import time
from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.models import BlockNet


@dataclass(frozen=True)
class Config:
    width: int = 96
    blocks: int = 4
    inputs: int = 4  # few per rank, so that activations hardly count


class MemoryRecorder(TorchDispatchMode):
    """Sees each operation of torch on this thread, backward and collectives included.

    ``peak`` is the largest number of bytes, after any operation, in the storages that are alive.
    ``unsharded`` is the most of ``model``'s parameters that were whole at once, in bytes, without padding.
    ``calls`` counts operations by name. gloo's own buffers, and what lies unused in the allocator, are not seen.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.peak, self.unsharded, self.calls = model, 0, 0, Counter()
        self.alive = WeakIdKeyDictionary()  # forgets a storage when torch frees it
        self._remember(tuple(model.parameters()))

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self._remember((args, kwargs, result))
        self.calls[operation.__name__.partition(".")[0]] += 1
        if self.bytes_alive() > self.peak:
            time.sleep(0.003)  # gloo's thread lets go of a message a little after it was sent
            self.peak = max(self.peak, self.bytes_alive())
        whole = (p for p in self.model.parameters() if not isinstance(p, DTensor))
        # Without the rows that FSDP2 adds where the number of ranks does not divide them.
        self.unsharded = max(self.unsharded, sum(p.nbytes for p in whole if p.untyped_storage().nbytes()))
        return result

    def bytes_alive(self) -> int:
        return sum(storage.nbytes() for storage in self.alive)

    def _remember(self, tree) -> None:
        for t in tree_leaves(tree):
            if isinstance(t, torch.Tensor):
                self.alive[(t.to_local() if isinstance(t, DTensor) else t).untyped_storage()] = None


def one_unit(net: BlockNet) -> list[nn.Module]:
    return []


def one_per_block(net: BlockNet) -> list[nn.Module]:
    return list(net.blocks)


def one_per_layer(net: BlockNet) -> list[nn.Module]:
    return [layer for block in net.blocks for layer in (block.up, block.down)]


def size(module: nn.Module) -> int:
    """Bytes of all parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def formula(choose, again: bool, cfg: Config) -> tuple[int, int, int]:
    """(bytes of whole parameters held at most, all-gathers, reduce-scatters) of a step.

    The root holds what no other unit holds, and stays whole from forward to backward in any case. Each
    other unit is gathered for forward, and ``again`` for backward if it was freed in between.
    """
    net = BlockNet(cfg.width, cfg.blocks)
    units = choose(net)
    root = size(net) - sum(size(unit) for unit in units)
    whole = root + max(map(size, units), default=0) if again else size(net)
    return whole, 1 + (2 if again else 1) * len(units), 1 + len(units)


def measure(model: nn.Module, group: Group, cfg: Config) -> MemoryRecorder:
    """Record forward and backward after a first step, which prepares things.

    Of three steps the one with the lowest peak: gloo's thread may be late to let go of a message.
    """
    x = torch.randn(cfg.inputs, 64, device=group.device)
    model(x).square().mean().backward()
    recorders = []
    for _ in range(3):
        model.zero_grad()
        with MemoryRecorder(model) as recorder:
            model(x).square().mean().backward()
        recorders.append(recorder)
    return min(recorders, key=lambda recorder: recorder.peak)


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        mesh, rows = init_device_mesh(group.device.type, (group.world_size,)), []
        everything = size(BlockNet(cfg.width, cfg.blocks))
        ddp = measure(DistributedDataParallel(BlockNet(cfg.width, cfg.blocks).to(group.device)), group, cfg)
        print_on_rank_0(
            f"DDP: peak {ddp.peak / everything:.2f} S, where S = {everything:,} bytes of parameters"
        )
        for choose in (one_unit, one_per_block, one_per_layer):
            for again in (True, False):
                model = BlockNet(cfg.width, cfg.blocks).to(group.device)
                reshard = None if again else False  # None, the default, is True for all units but the root
                for unit in choose(model):
                    fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
                seen = measure(fully_shard(model, mesh=mesh, reshard_after_forward=reshard), group, cfg)
                counted = seen.unsharded, seen.calls["_allgather_base_"], seen.calls["_reduce_scatter_base_"]
                name = f"{choose.__name__.replace('_', ' ')}, reshard_after_forward={reshard}"
                if counted != formula(choose, again, cfg):
                    raise CourseError(f"{name}: {counted}, by the formula {formula(choose, again, cfg)}")
                row = dict(zip(("unsharded", "all-gathers", "reduce-scatters"), counted, strict=True))
                rows.append({"units": choose.__name__, "again": again, "peak": seen.peak} | row)
                print_on_rank_0(
                    f"{name:42} peak {seen.peak / everything:.2f} S, "
                    f"whole {seen.unsharded / everything:.2f} S, "
                    f"{counted[1]:2} all-gathers, {counted[2]} reduce-scatters"
                )
        record_results("lab_19_units", {"rows": rows, "ddp": ddp.peak, "everything": everything})


if __name__ == "__main__":
    run(main, Config())
