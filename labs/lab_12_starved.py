"""The training script of lesson 10 with a starved rank, with a late one, and with batches that do not divide.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_starved.py
Written by:  notebooks/12_uneven_inputs.ipynb
"""

import argparse
import io
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from unittest.mock import patch

import lab_10_train as script
import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import Group, process_group, read_environment
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, parameters


@dataclass(frozen=True)
class Config:
    batch_size: int = 53  # divides by none of 2 to 8 ranks: some get an image more than others
    patience_s: int = 60
    tolerance: float = 1e-12  # float64
    apart: float = 1e-6  # what differs, differs by more


# --- Trouble ---


def last_rank(step: int, ranks: int) -> int:
    return ranks - 1


def in_turns(step: int, ranks: int) -> int:
    return step % ranks


class Meeting:
    """Makes one rank the last to be ready for a step, however busy the machine is; notes when each one was.

    The others say through the store that they are ready, and the late rank waits until all have.
    """

    def __init__(self, name: str, cfg: Config) -> None:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        self.store = dist.PrefixStore(name, store)
        self.rank = int(os.environ["RANK"])
        self.ranks = int(os.environ["WORLD_SIZE"])
        self.patience = timedelta(seconds=cfg.patience_s)
        self.ready: list[float] = []  # in each step, seconds of the monotonic clock that all ranks here share

    def be_ready(self, step: int, late: int) -> None:
        """Every rank comes here once in a step. Rank ``late`` leaves last."""
        if self.rank == late:
            others = [f"step {step}, rank {rank}" for rank in range(self.ranks) if rank != late]
            self.store.wait(others, self.patience)
        self.ready.append(time.monotonic())
        self.store.set(f"step {step}, rank {self.rank}", "ready")


class SlowLoader:
    """The script's loader. The last rank gets each of its batches when all the others have theirs."""

    def __init__(self, loader, meeting: Meeting) -> None:
        self.loader = loader
        self.batch_sampler = loader.batch_sampler
        self.meeting = meeting

    def __iter__(self) -> Iterator:
        for step, batch in enumerate(self.loader):
            self.meeting.be_ready(step, late=last_rank(step, self.meeting.ranks))
            yield batch


def loaders_that_starve(meeting: Meeting) -> Callable:
    """What stands in for the script's ``loaders``."""
    original = script.loaders

    def loaders(data: script.Data, options: argparse.Namespace, ranks: script.Ranks) -> tuple:
        to_train, to_test = original(data, options, ranks)
        return SlowLoader(to_train, meeting), to_test

    return loaders


class Watched(script.Trainer):
    """The script's trainer. It keeps itself where this lab can find it, and notes its steps."""

    latest: "Watched"

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        Watched.latest = self
        self.images: list[int] = []
        self.done: list[float] = []

    def train_step(self, images: torch.Tensor, labels: torch.Tensor, steps: int) -> torch.Tensor:
        loss = super().train_step(images, labels, steps)
        self.images.append(len(images))
        self.done.append(time.monotonic())
        return loss


def trainer_with_delays(meeting: Meeting) -> type[Watched]:
    """In each step another rank has its batch in time, but begins to compute last."""

    class Delayed(Watched):
        def train_step(self, images: torch.Tensor, labels: torch.Tensor, steps: int) -> torch.Tensor:
            meeting.be_ready(self.step, late=in_turns(self.step, meeting.ranks))
            return super().train_step(images, labels, steps)

    return Delayed


def mean_of_the_rank(ranks: int, cfg: Config) -> Callable:
    """What stands in for the script's sum of losses: every rank's mean weighs the same, as in plain DDP."""
    original = script.F.cross_entropy

    def cross_entropy(scores: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
        loss = original(scores, labels, reduction=reduction)
        return loss / len(labels) * (cfg.batch_size / ranks)  # the script multiplies by ranks / batch size

    return cross_entropy


# --- Runs ---


@contextmanager
def without_torchrun() -> Iterator[None]:
    """For a while this process is alone, as if ``python`` had started it."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(kept)


@dataclass(frozen=True)
class Run:
    """What one run of the script leaves: its parameters, and by step the images and the time of its end."""

    parameters: list[tuple[str, torch.Tensor]]
    images: list[int]
    done: list[float]


def train(number: int, cfg: Config, **instead: object) -> Run:
    """Run the script for one epoch, with some of its parts replaced.

    Each run has a ``number`` of its own. The script takes it for that of a restart, and so finds no addresses
    of the run before in the store.
    """
    arguments = ["--epochs=1", "--float64", f"--batch-size={cfg.batch_size}", f"--timeout={cfg.patience_s}"]
    said = io.StringIO()
    with ExitStack() as stack:
        for name, part in {"Trainer": Watched, **instead}.items():
            stack.enter_context(patch.object(script, name, part))
        stack.enter_context(patch.dict(os.environ, TORCHELASTIC_RESTART_COUNT=str(number)))
        stack.enter_context(redirect_stdout(said))
        stack.enter_context(redirect_stderr(said))
        code = script.main(arguments)
    if code != 0:
        raise CourseError(f"the script ended with exit code {code}: {said.getvalue()}")
    trainer = Watched.latest
    return Run(parameters(trainer.ddp), trainer.images, trainer.done)


# --- Checks ---


def check_shares(trained: Run, cfg: Config, group: Group) -> None:
    """Each step uses the images of one process's step, each on one rank; all ranks make equally many."""
    options = argparse.Namespace(batch_size=cfg.batch_size, seed=0, augment=False)
    count = len(script.digits().train)
    whole = list(script.RankBatches(count, options, script.Ranks(0, 1, group.device)))
    parts = [
        list(script.RankBatches(count, options, script.Ranks(rank, group.world_size, group.device)))
        for rank in range(group.world_size)
    ]
    for step, images in enumerate(whole):
        shared_out = [image for part in parts for image in part[step]]
        if sorted(shared_out) != sorted(images):
            raise CourseError(f"step {step}: the ranks do not use the images of one process")
    everyone = [None] * group.world_size
    dist.all_gather_object(everyone, trained.images)
    shares = [set(images) for images in everyone]
    steps = {len(images) for images in everyone}
    if steps != {len(whole)} or sum(map(sum, everyone)) != cfg.batch_size * len(whole):
        raise CourseError(f"the ranks made {steps} steps with {shares} images, expected {len(whole)}")
    if len(set.union(*shares)) == 1:
        raise CourseError(f"{cfg.batch_size} images divide by {group.world_size} ranks: nothing is uneven")
    each = ", ".join(str(size) for share in shares for size in share)
    print_on_rank_0(f"{cfg.batch_size} images a step, on the ranks {each}: all make {len(whole)} steps")


def check_waiting(name: str, trained: Run, meeting: Meeting, late_of: Callable) -> None:
    """In no step is any rank done before the late one is ready; so all others wait for it."""
    everyone: list = [None] * meeting.ranks
    dist.all_gather_object(everyone, {"ready": meeting.ready, "done": trained.done})
    waited_for = Counter()
    for step in range(len(trained.done)):
        late = late_of(step, meeting.ranks)
        last_ready = max(times["ready"][step] for times in everyone)
        first_done = min(times["done"][step] for times in everyone)
        if everyone[late]["ready"][step] < last_ready:
            raise CourseError(f"{name}, step {step}: rank {late} was not the last to be ready")
        if first_done < last_ready:
            raise CourseError(f"{name}, step {step}: a rank was done before rank {late} was ready")
        waited_for[late] += 1
    told = ", ".join(f"for rank {rank} in {steps} steps" for rank, steps in sorted(waited_for.items()))
    print_on_rank_0(f"{name}: the others wait {told}")


def check_parity(name: str, trained: Run, alone: Run, cfg: Config) -> None:
    assert_all_equal(name, trained.parameters, alone.parameters, cfg.tolerance)
    print_on_rank_0(f"{name}: the parameters of one process")


def check_means(trained: Run, alone: Run, cfg: Config) -> None:
    """Without the weights the shares differ, and so does the result."""
    off = max(
        (mine - truth).abs().max().item()
        for (_, mine), (_, truth) in zip(trained.parameters, alone.parameters, strict=True)
    )
    if not off > cfg.apart:
        raise CourseError(f"the mean of means is off by {off:.1e}, expected was more than {cfg.apart:.0e}")
    print_on_rank_0(f"each rank's mean weighs the same: off by {off:.0e}")


def main(cfg: Config) -> None:
    _, _, ranks = read_environment()
    if ranks < 2:
        raise InputError("this lab runs with 2 to 8 ranks: change --nproc-per-node")
    with without_torchrun():
        alone = train(0, cfg)
    starving = Meeting("starved", cfg)
    starved = train(1, cfg, loaders=loaders_that_starve(starving))
    delaying = Meeting("delayed", cfg)
    delayed = train(2, cfg, Trainer=trainer_with_delays(delaying))
    with patch.object(script.F, "cross_entropy", mean_of_the_rank(ranks, cfg)):
        means = train(3, cfg)

    with process_group(smallest=2) as group:
        check_shares(starved, cfg, group)
        check_waiting("starved", starved, starving, late_of=last_rank)
        check_parity("starved", starved, alone, cfg)
        check_waiting("late in turns", delayed, delaying, late_of=in_turns)
        check_parity("late in turns", delayed, alone, cfg)
        check_means(means, alone, cfg)


if __name__ == "__main__":
    run(main, Config())
