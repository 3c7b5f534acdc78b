"""A resumed run equals the unbroken run bit for bit, and what spoils that.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_11/proof_resume.py
"""

import copy
from dataclasses import dataclass, field

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
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run
from shared.training.checkpoint import load_checkpoint, save_atomically
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, parameters

from lab_10_batches import seed_of


@dataclass(frozen=True)
class Config:
    seed: int = 7
    steps: int = 40
    saved_at: int = 20
    batch: int = 24  # images per rank and step
    seed_each_step: bool = False  # have random numbers follow from seed, step and rank


NOTHING = "nothing"
PARTS = ("optimizer", "scheduler", "scaler", "random numbers", "position")  # beside the model


@dataclass
class Run:
    """All that a training run consists of. What a checkpoint lacks starts anew."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    scheduler: StepLR
    scaler: GradScaler
    epoch: int = 0
    position: int = 0  # batches of this epoch that are done
    losses: list[float] = field(default_factory=list)  # of each step, averaged over the ranks
    skipped: list[int] = field(default_factory=list)  # steps in which fp16 overflowed: without an update


def new_run(cfg: Config, group: Group) -> Run:
    torch.manual_seed(cfg.seed + group.rank)  # from here on, each rank draws its own random numbers
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(group.device))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    scheduler = StepLR(optimizer, 7, 0.8)
    scaler = GradScaler(group.device.type, growth_interval=4)
    return Run(model, optimizer, scheduler, scaler)


def gather_random_states(group: Group) -> list[dict] | None:
    """The state of each rank's random numbers, on rank 0. What numpy and ``random`` draw is not kept."""
    own = {"cpu": torch.get_rng_state()}
    if group.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(group.device)
    return gather_on_rank_0(own) or None


def set_random_states(states: list[dict], group: Group) -> None:
    own = {name: state.cpu() for name, state in states[group.rank].items()}
    torch.set_rng_state(own["cpu"])
    if "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"], group.device)


def snapshot(it: Run, group: Group) -> dict:
    """The run as tensors and plain values. Collective: each rank's random numbers go to rank 0."""
    return {
        "model": it.model.module.state_dict(),
        "optimizer": it.optimizer.state_dict(),
        "scheduler": it.scheduler.state_dict(),
        "scaler": it.scaler.state_dict(),
        "random numbers": gather_random_states(group),
        "position": [it.epoch, it.position],
        "losses": it.losses,
    }


def restore(it: Run, saved: dict, group: Group, forget: str = NOTHING) -> None:
    """Bring a new run to where the checkpoint is, except for the part to ``forget``."""
    make_first_pass(it.model, group)
    it.model.module.load_state_dict(saved["model"])
    if forget != "optimizer":
        it.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))  # else training changes ``saved``
    if forget != "scheduler":
        it.scheduler.load_state_dict(saved["scheduler"])
    if forget != "scaler":
        it.scaler.load_state_dict(saved["scaler"])
    if forget != "random numbers":
        set_random_states(saved["random numbers"], group)
    if forget != "position":
        it.epoch, it.position = saved["position"]
    it.losses = list(saved["losses"])


def make_first_pass(model: DistributedDataParallel, group: Group) -> None:
    """After its first backward pass DDP sorts its buckets anew, and another order may round otherwise."""
    with torch.autocast(group.device.type, dtype=torch.float16):
        loss = model(torch.zeros(2, 64, device=group.device)).sum()
    loss.backward()


def train_step(it: Run, x: torch.Tensor, y: torch.Tensor, cfg: Config, group: Group) -> None:
    if cfg.seed_each_step:
        torch.manual_seed(seed_of(cfg.seed, "noise", len(it.losses), group.rank))
    it.optimizer.zero_grad()
    with torch.autocast(group.device.type, dtype=torch.float16):
        loss = F.cross_entropy(it.model(x), y)
    scale = it.scaler.get_scale()
    it.scaler.scale(loss).backward()
    it.scaler.step(it.optimizer)
    it.scaler.update()
    if it.scaler.get_scale() >= scale:
        it.scheduler.step()
    else:
        it.skipped.append(len(it.losses) + 1)
    total = loss.detach().clone()
    dist.all_reduce(total)
    it.losses.append(total.item() / group.world_size)


def train(it: Run, steps: int, cfg: Config, group: Group) -> Run:
    """Train until ``steps`` steps are done."""
    data = load_images("digits")
    x = data.train_x.to(group.device)
    y = data.train_y.to(group.device)
    sampler = DistributedSampler(range(len(x)), drop_last=True, seed=cfg.seed)
    while len(it.losses) < steps:
        sampler.set_epoch(it.epoch)  # the order follows from seed and epoch
        batches = torch.tensor(list(sampler)).split(cfg.batch)[:-1]
        for batch in batches[it.position :]:  # the others are done
            train_step(it, x[batch], y[batch], cfg, group)
            it.position += 1
            if len(it.losses) == steps:
                break
        if it.position == len(batches):
            it.epoch += 1
            it.position = 0
    return it


def save_and_load(cfg: Config, group: Group) -> dict:
    """Train half of the way, save, and load what was saved. Collective."""
    path = results_folder() / f"proof_resume.{group.world_size}.pt"
    half = train(new_run(cfg, group), cfg.saved_at, cfg, group)
    content = snapshot(half, group)
    if group.rank == 0:
        save_atomically(content, path)
    dist.barrier()
    return load_checkpoint(path)


def check(unbroken: Run, resumed: Run, forget: str) -> str:
    """Whether the two are equal, as they must be if nothing was forgotten, and only then."""
    pairs = zip(unbroken.losses, resumed.losses, strict=True)
    wrong = [step for step, (a, b) in enumerate(pairs, start=1) if a != b]
    if bool(wrong) != (forget != NOTHING):
        raise CourseError(f"{forget} forgotten: other losses at steps {wrong}")
    if wrong:
        return f"{forget} forgotten: the loss differs from step {wrong[0]} on"
    assert_all_equal("resumed", parameters(resumed.model), parameters(unbroken.model), 0.0)
    return f"{forget} forgotten: losses and parameters are equal bit for bit"


def main(cfg: Config) -> None:
    with process_group(seed=cfg.seed, timeout_s=20) as group:
        saved = save_and_load(cfg, group)
        unbroken = train(new_run(cfg, group), cfg.steps, cfg, group)
        first = next(step for step in unbroken.skipped if step > cfg.saved_at)
        print_on_rank_0(f"unbroken: fp16 overflows in step {first}, whose update is skipped")
        losses = {}
        for forget in (NOTHING, *PARTS, NOTHING):  # at the end again: no resume has spoiled ``saved``
            resumed = new_run(cfg, group)
            restore(resumed, saved, group, forget)
            train(resumed, cfg.steps, cfg, group)
            told = check(unbroken, resumed, forget)
            if forget not in losses:
                print_on_rank_0(told)
            losses[forget] = resumed.losses

        seeded = Config(seed_each_step=True)
        saved = save_and_load(seeded, group)
        resumed = new_run(seeded, group)
        restore(resumed, saved, group, forget="random numbers")
        train(resumed, cfg.steps, seeded, group)
        check(train(new_run(seeded, group), cfg.steps, seeded, group), resumed, NOTHING)
        print_on_rank_0("random numbers seeded anew in each step and not saved: equal bit for bit")
        values = {"saved": cfg.saved_at, "unbroken": unbroken.losses, "resumed": losses}
        record_results("11_resume", values)


if __name__ == "__main__":
    run(main, Config())
