"""A run that is killed and resumed equals the unbroken run bit for bit, and what spoils that.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_11_resume.py
Written by:  notebooks/11_checkpoints.ipynb
"""

import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DistributedSampler

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run
from shared.training.checkpoint import load_checkpoint, save_atomically
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, parameters
from shared.training.random_states import gather_random_states, set_random_states


@dataclass(frozen=True)
class Config:
    seed: int = 7
    steps: int = 40
    batch: int = 24  # images per rank and step
    save_every: int = 10
    killed_at: int = 25


PARTS = ("optimizer", "scheduler", "scaler", "random numbers", "position")  # beside the model


@dataclass
class Run:
    """All that a training run consists of. What a checkpoint lacks starts anew."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: StepLR
    scaler: GradScaler
    epoch: int = 0
    position: int = 0  # batches of this epoch that are done
    losses: list[float] = field(default_factory=list)


def new_run(cfg: Config, group: Group) -> Run:
    torch.manual_seed(cfg.seed + group.rank)  # from here on, each rank draws its own random numbers
    layers = nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)
    model = DistributedDataParallel(nn.Sequential(*layers).to(group.device))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    scaler = GradScaler(group.device.type, growth_interval=4)
    return Run(model, optimizer, StepLR(optimizer, 6, 0.8), scaler)


def snapshot(it: Run, group: Group) -> dict:
    """The run as tensors and plain values. Collective: each rank's random numbers go to rank 0."""
    states = gather_random_states(torch.default_generator, group)  # of a GPU as well, if there is one
    saved = {name: getattr(it, name).state_dict() for name in PARTS[:3]} | {"losses": it.losses}
    saved |= {"random numbers": states, "position": [it.epoch, it.position]}
    return saved | {"model": it.model.module.state_dict()}


def restore(it: Run, saved: dict, group: Group, forget: str = "") -> None:
    """Bring a new run to where the checkpoint is, except for the part to ``forget``."""
    with torch.autocast(group.device.type, dtype=torch.float16):  # after a first pass DDP sorts its buckets
        it.model(torch.zeros(2, 64, device=group.device)).sum().backward()
    it.model.module.load_state_dict(saved["model"])
    for name in set(PARTS[:3]) - {forget}:
        getattr(it, name).load_state_dict(saved[name])
    if forget != "random numbers":
        set_random_states(saved["random numbers"], torch.default_generator, group)
    if forget != "position":
        it.epoch, it.position = saved["position"]
    it.losses = list(saved["losses"])


def train(it: Run, cfg: Config, group: Group, saving: Path | None = None) -> Run:
    """Train to the last step. With a path: save there every few steps, and die on the way."""
    x, y = (part.to(group.device) for part in load_images("digits")[:2])
    sampler = DistributedSampler(range(len(x)), drop_last=True, seed=cfg.seed)
    while len(it.losses) < cfg.steps:
        sampler.set_epoch(it.epoch)  # the order follows from seed and epoch
        batches = torch.tensor(list(sampler)).split(cfg.batch)[:-1]
        for batch in batches[it.position :][: cfg.steps - len(it.losses)]:  # skip what is done
            it.optimizer.zero_grad()
            with torch.autocast(group.device.type, dtype=torch.float16):
                loss = F.cross_entropy(it.model(x[batch]), y[batch])
            scale = it.scaler.get_scale()
            it.scaler.scale(loss).backward()
            it.scaler.step(it.optimizer)
            it.scaler.update()
            if it.scaler.get_scale() >= scale:  # else fp16 overflowed, and the optimizer's step was skipped
                it.scheduler.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            it.losses.append(total.item() / group.world_size)
            it.position += 1
            if saving:
                save_or_die(it, cfg, group, saving)
        if it.position == len(batches):
            it.epoch = it.epoch + 1
            it.position = 0
    return it


def save_or_die(it: Run, cfg: Config, group: Group, path: Path) -> None:
    if len(it.losses) % cfg.save_every == 0:
        content = snapshot(it, group)
        if group.rank == 0:
            save_atomically(content, path)
        dist.barrier()
    if len(it.losses) == cfg.killed_at and group.rank == group.world_size - 1:
        signal.raise_signal(signal.SIGKILL)


def main(cfg: Config, killed: bool) -> None:
    with process_group(seed=cfg.seed, timeout_s=20) as group:
        path = results_folder() / f"lab_11_resume.{group.world_size}.pt"
        if killed:
            train(new_run(cfg, group), cfg, group, saving=path)
        saved = load_checkpoint(path)
        unbroken = train(new_run(cfg, group), cfg, group)
        done = len(saved["losses"])
        resumed = {}
        for forget in ("", *PARTS):
            it = new_run(cfg, group)
            restore(it, saved, group, forget)
            resumed[forget] = ours = train(it, cfg, group).losses
            wrong = [step for step in range(cfg.steps) if ours[step] != unbroken.losses[step]]
            if bool(wrong) != bool(forget):
                raise CourseError(f"resumed without {forget or 'any loss'}: other losses at steps {wrong}")
            if forget:
                print_on_rank_0(f"without {forget}: another loss from step {wrong[0] + 1} on")
            else:
                assert_all_equal("resumed", parameters(it.model), parameters(unbroken.model), 0.0)
                print_on_rank_0(f"resumed after step {done}: losses and parameters are equal bit for bit")
        record_results("lab_11_resume", {"saved": done, "unbroken": unbroken.losses, "resumed": resumed})


if __name__ == "__main__":
    run(main, Config(), "--be-killed" in sys.argv)
