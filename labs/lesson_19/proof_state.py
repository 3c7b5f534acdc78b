"""Save the whole of what FSDP trained. Then rank 0 gathers alone, and computes alone: both wait.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_19/proof_state.py
"""

import io
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh

from shared.runtime.errors import CourseError, waited_in_vain
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_in_rank_order, print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.checkpoint import save_atomically
from shared.training.data import batch, load_images
from shared.training.models import BlockNet
from shared.training.parity import assert_all_equal, parameters

from lesson_19.sharding import shard_units


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 3
    global_batch: int = 840  # divides by every world size up to 8
    patience_s: float = 4.0  # how long a rank waits for the others in FSDP's collectives


WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # with both, only rank 0 gets it


def new_net(cfg: Config, group: Group) -> BlockNet:
    torch.manual_seed(cfg.seed)  # the same on all ranks
    return BlockNet().double().to(group.device)


def reference(cfg: Config, group: Group) -> BlockNet:
    """What one process has trained."""
    net = new_net(cfg, group)
    train(net, slice(None), cfg, group)
    return net


def train(model: nn.Module, part: slice, cfg: Config, group: Group) -> None:
    """Train on the given part of each batch."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, eps=1e-4)
    for step in range(cfg.steps):
        x, y = batch(load_images(), step, cfg.global_batch, group.device)
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()


def file_size(state: dict) -> int:
    """Bytes of the file that torch.save makes of it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return len(buffer.getvalue())


def alone_in_a_gather(model: torch.nn.Module, group: Group, cfg: Config) -> str:
    """Rank 0 asks for the whole state, the others do not. What happens?"""
    if group.rank > 0:
        return "not called"
    start = time.monotonic()
    try:
        get_model_state_dict(model, options=WHOLE)
    except RuntimeError as error:
        waited = time.monotonic() - start
        if waited < cfg.patience_s or f"Timed out waiting {1000 * cfg.patience_s:.0f}ms" not in str(error):
            raise
        return f"timed out after {cfg.patience_s:.0f} s; gloo's default is 30 minutes"
    raise CourseError("one rank cannot gather alone")


def forward_passes(model: nn.Module, number: int, group: Group) -> str:
    """Evaluate on ``number`` batches, which another rank may have more or fewer of."""
    x, _ = batch(load_images(), 0, 8, group.device)
    done = 0
    try:
        with torch.no_grad():
            for _ in range(number):
                model(x)
                done += 1
    except RuntimeError as error:
        if not waited_in_vain(str(error)):
            raise
        return f"waits in forward pass {done + 1} of {number}"
    return f"has done its {number}"


def unequal_forwards(cfg: Config, group: Group) -> None:
    """Each forward pass gathers. What DDP's ``module`` bears, FSDP does not; unless the model is copied."""
    last = group.world_size - 1
    for name, counts in {
        "validation on rank 0 alone": (1, 0),
        "one batch more on rank 0": (3, 2),
    }.items():
        short = dist.new_group(timeout=timedelta(seconds=cfg.patience_s))  # of no use after a time-out
        model = shard_units(new_net(cfg, group), DeviceMesh.from_group(short, group.device.type))
        said = gather_on_rank_0(forward_passes(model, counts[group.rank > 0], group))
        if said:
            print_on_rank_0(f"{name}: rank 0 {said[0]}; rank {last} {said[last]}")
            if not said[0].startswith("waits in") or not said[last].startswith("has done"):
                raise CourseError(f"{name}: rank 0 should wait for a rank that has gone on: {said}")


def train_and_save(mesh: DeviceMesh, group: Group, cfg: Config) -> nn.Module:
    """Train a sharded model. Every rank takes part in gathering it, rank 0 gets and writes it."""
    model = shard_units(new_net(cfg, group), mesh)
    train(model, slice(group.rank, None, group.world_size), cfg, group)
    whole = get_model_state_dict(model, options=WHOLE)
    print_in_rank_order(f"full_state_dict, cpu_offload: {len(whole)} tensors")
    everywhere = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    print_in_rank_order(f"full_state_dict alone: {len(everywhere)} tensors, on {group.device.type}")
    if len(everywhere) != len(list(model.parameters())):
        raise CourseError("without cpu_offload each rank should get the whole")
    if group.rank == 0:
        assert_all_equal("saved", whole.items(), parameters(reference(cfg, group)), 1e-12)
        save_atomically({"model": whole}, results_folder() / "proof_state.pt")
        plain = new_net(cfg, group)
        plain.load_state_dict(whole)
        print_on_rank_0(f"validation on rank 0 alone, by a plain copy: it {forward_passes(plain, 3, group)}")
    dist.barrier()
    return model


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        short = dist.new_group(timeout=timedelta(seconds=cfg.patience_s))  # for FSDP's own collectives
        model = train_and_save(DeviceMesh.from_group(short, group.device.type), group, cfg)

        # A script for DDP saves model.state_dict() on rank 0.
        part = file_size(model.state_dict()) / file_size(new_net(cfg, group).state_dict())
        print_on_rank_0(f"model.state_dict(): rank 0 would save {part:.1f} of the bytes")
        if abs(part - 1 / group.world_size) > 0.1:
            raise CourseError(f"{part:.2f} of the bytes, expected {1 / group.world_size:.2f}")

        outcome = alone_in_a_gather(model, group, cfg)
        print_in_rank_order(f"full_state_dict on rank 0 alone: {outcome}")
        unequal_forwards(cfg, group)


if __name__ == "__main__":
    run(main, Config())
