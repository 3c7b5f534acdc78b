"""ZeRO-1 saved by all ranks, restarted on one rank fewer: training continues as in one process.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_18/proof_restart.py
"""

import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import batch, load_images, shareable
from shared.training.parity import assert_all_equal, parameters

from lab_18_zero_1 import Zero1
from lesson_18.proof_by_hand import backward, build_model, groups_of


@dataclass(frozen=True)
class Config:
    steps: int = 3  # before the restart, and the same number after it
    batch: int = 100  # images, or some more
    tolerance: float = 1e-12  # float64


def adamw(groups: list) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01)


class Restartable(Zero1):
    """``Zero1`` whose state can be saved as one, and loaded by another number of ranks."""

    def whole(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        """A piece for each shard of this rank to (numbers of all parameters,), on all ranks. Collective."""
        part = pieces[0].new_zeros(len(self.part))
        for piece, place in zip(pieces, self.ranges, strict=True):
            part[place] = piece
        gathered = part.new_empty(len(self.flat))
        dist.all_gather_into_tensor(gathered, part, group=self.group)
        return gathered[: sum(p.numel() for p in self.params)]  # without the padding, which depends on N

    def pieces(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """The inverse, for this number of ranks."""
        padded = whole.new_zeros(len(self.flat))
        padded[: len(whole)] = whole
        part = padded.chunk(self.ranks)[self.rank]
        return [part[place].clone() for place in self.ranges]

    def whole_state(self) -> dict[str, torch.Tensor]:
        """Moments of all parameters, and the count of steps. Collective."""
        saved = {}
        for name, value in self.state[self.shards[0]].items():
            saved[name] = self.whole([self.state[s][name] for s in self.shards]) if value.dim() else value
        return saved

    def load_whole_state(self, saved: dict[str, torch.Tensor]) -> None:
        for name, value in saved.items():
            pieces = self.pieces(value) if value.dim() else [value.clone() for _ in self.shards]
            for shard, piece in zip(self.shards, pieces, strict=True):
                self.state[shard][name] = piece


def train(net: nn.Module, optimizer, x, y, share: slice, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        backward(net, x[share], y[share])
        optimizer.step()


def reference(x, y, cfg: Config, group: Group) -> nn.Module:
    """One process, without a break."""
    net = build_model(group)
    train(net, adamw(groups_of(net)), x, y, slice(None), 2 * cfg.steps)
    return net


def restart_by_hand(k: int, fewer: dist.ProcessGroup, x, y, cfg: Config, group: Group) -> nn.Module | None:
    """``Restartable`` on all ranks, then on the first ``k``, which return what they have trained."""
    n = group.world_size
    net = build_model(group)
    optimizer = Restartable(groups_of(net), adamw)
    train(net, optimizer, x, y, slice(group.rank, None, n), cfg.steps)
    saved = optimizer.whole_state()
    if group.rank >= k:
        return None
    again = build_model(group)
    again.load_state_dict(net.state_dict())
    optimizer = Restartable(groups_of(again), adamw, fewer)
    optimizer.load_whole_state(saved)
    train(again, optimizer, x, y, slice(group.rank, None, k), cfg.steps)
    return again


def restart_torchs(k: int, fewer: dist.ProcessGroup, x, y, cfg: Config, group: Group) -> nn.Module | None:
    """The same with torch's class, whose gathered state knows nothing of ranks."""
    n = group.world_size
    ddp = DistributedDataParallel(build_model(group))
    sharded = ZeroRedundancyOptimizer(groups_of(ddp.module), torch.optim.AdamW, lr=0.01)
    train(ddp, sharded, x, y, slice(group.rank, None, n), cfg.steps)
    sharded.consolidate_state_dict(to=0)
    box = [sharded.state_dict() if group.rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    (saved,) = box
    if group.rank >= k:
        return None
    again = DistributedDataParallel(build_model(group), process_group=fewer)
    again.load_state_dict(ddp.state_dict())
    sharded = ZeroRedundancyOptimizer(
        groups_of(again.module), torch.optim.AdamW, process_group=fewer, lr=0.01
    )
    sharded.load_state_dict(saved)
    train(again, sharded, x, y, slice(group.rank, None, k), cfg.steps)
    return again.module


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        x, y = batch(load_images("digits"), 0, shareable(cfg.batch, group.world_size), group.device)
        k = max(1, group.world_size - 1)
        fewer = dist.new_group(list(range(k)))
        alone = reference(x, y, cfg, group)
        for name, restart in (("Zero1", restart_by_hand), ("torch's class", restart_torchs)):
            net = restart(k, fewer, x, y, cfg, group)
            if net is not None:
                assert_all_equal(f"restarted {name}:", parameters(net), parameters(alone), cfg.tolerance)
            print_on_rank_0(f"{name}: saved by {group.world_size} ranks, restarted on {k}: as one process")


if __name__ == "__main__":
    run(main, Config())
