"""A parameter server: one worker holds the weights, the others train. Its log replays in one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_23_parameter_server.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import random
import time
from dataclasses import dataclass
from threading import Barrier, Lock

import torch
import torch.nn.functional as F
from torch.distributed import rpc

from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import Images, load_images
from shared.training.parity import assert_equal

Entry = tuple[int, int, int]  # trainer, number of its batch, version of the weights it had read


@dataclass(frozen=True)
class Config:
    updates: int = 120  # of all trainers together
    batch: int = 48
    learning_rate: float = 0.5
    pace_s: tuple[float, float] = (0.008, 0.024)  # what the gradient of a larger model would take
    tolerance: float = 1e-12  # float64
    accuracy: float = 0.85


DATA: list[Images] = []


def prepare() -> int:
    """Load the images, before anyone begins. Returns how many there are."""
    DATA.append(load_images("digits"))
    return len(DATA[0].train_x)


class ParameterServer:
    """The weights of a linear classifier, float64 (10, 64), and a log of every update."""

    def __init__(self, cfg: Config, trainers: int) -> None:
        self.weight = torch.zeros(10, 64, dtype=torch.float64)
        self.learning_rate = cfg.learning_rate
        self.log: list[Entry] = []
        self.lock = Lock()  # calls of several trainers run in several threads
        self.start = Barrier(trainers)

    def begin(self) -> None:
        """Come back when all trainers have called, so that none is through before another has begun."""
        self.start.wait(timeout=30)

    def pull(self) -> tuple[int, torch.Tensor]:
        """Version and weights: the version counts the updates so far."""
        with self.lock:
            return len(self.log), self.weight.clone()

    def push(self, entry: Entry, gradient: torch.Tensor) -> None:
        with self.lock:
            self.weight.sub_(gradient, alpha=self.learning_rate)
            self.log.append(entry)


def gradient_of(weight: torch.Tensor, trainer: int, number: int, trainers: int, cfg: Config) -> torch.Tensor:
    """The gradient of the mean loss over one batch of one trainer's part of the data."""
    x = DATA[0].train_x[trainer - 1 :: trainers]
    y = DATA[0].train_y[trainer - 1 :: trainers]
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(number))[: cfg.batch]
    weight = weight.detach().requires_grad_()
    loss = F.cross_entropy(x[chosen].flatten(1).double() @ weight.T, y[chosen])
    return torch.autograd.grad(loss, weight)[0]


def train(server: rpc.RRef, trainer: int, trainers: int, cfg: Config) -> int:
    """Called by the server's process on each trainer: pull, compute, push, as often as is its share."""
    mine = range(trainer - 1, cfg.updates, trainers)
    gradient_of(torch.zeros(10, 64, dtype=torch.float64), trainer, 0, trainers, cfg)  # the first is slow
    pace = random.Random(trainer)
    server.rpc_sync().begin()
    for number in mine:
        version, weight = server.rpc_sync().pull()
        gradient = gradient_of(weight, trainer, number, trainers, cfg)
        time.sleep(pace.uniform(*cfg.pace_s))  # meanwhile the others push
        server.rpc_sync().push((trainer, number, version), gradient)
    return len(mine)


def reference(log: list[Entry], trainers: int, cfg: Config) -> list[torch.Tensor]:
    """The weights after each update, computed anew by one process from the log: no gradient is in it."""
    weights = [torch.zeros(10, 64, dtype=torch.float64)]
    for trainer, number, version in log:
        gradient = gradient_of(weights[version], trainer, number, trainers, cfg)
        weights.append(weights[-1].sub(gradient, alpha=cfg.learning_rate))
    return weights


def staleness(log: list[Entry], trainers: int) -> list[int]:
    """By update: how many other updates came between the trainer's pull and its push, as the log tells."""
    stale = [at - version for at, (_, _, version) in enumerate(log)]
    overtaken = sum(behind > 0 for behind in stale)
    if trainers == 1 and overtaken:
        raise CourseError(f"{overtaken} updates of a single trainer are stale")
    if trainers > 1 and overtaken < len(log) / 10:
        raise CourseError(f"{overtaken} of {len(log)} updates are stale: the trainers hardly ran together")
    return stale


def judge(server: ParameterServer, trainers: int, cfg: Config) -> dict:
    """Compare the server's weights with the replay, and test them on images that nobody trained on."""
    replayed = reference(server.log, trainers, cfg)
    difference = assert_equal("weights", server.weight, replayed[-1], cfg.tolerance)
    print(f"one process replays the {len(server.log)} updates: largest difference {difference:.0e}")
    short = reference(server.log[:-1], trainers, cfg)[-1]
    if (short - server.weight).abs().max() < 1e-6:
        raise CourseError("a replay that leaves out an update comes out the same: it proves nothing")

    x = DATA[0].test_x.flatten(1).double()
    y = DATA[0].test_y
    losses = [F.cross_entropy(x @ weight.T, y).item() for weight in replayed]
    right = (x @ server.weight.T).argmax(1) == y
    if right.double().mean() < cfg.accuracy or losses[-1] > 0.5 * losses[0]:
        raise CourseError(f"loss {losses[0]:.2f} to {losses[-1]:.2f}, {right.double().mean():.1%} recognised")
    print(f"more than {cfg.accuracy:.0%} of {len(y)} new images recognised, the loss has more than halved")
    stale = staleness(server.log, trainers)
    return {"losses": losses, "trainers": [trainer for trainer, _, _ in server.log], "stale": stale}


def main(cfg: Config) -> None:
    with process_group(smallest=2, timeout_s=60) as group, rpc_workers(group, timeout_s=60) as workers:
        results = {}
        trainers = len(workers) - 1
        if group.rank == 0:  # the others have nothing to do but to be called
            torch.futures.wait_all([rpc.rpc_async(name, prepare) for name in workers])
            server = ParameterServer(cfg, trainers)
            reference_to_it = rpc.RRef(server)
            calls = [  # timeout=0: no limit; the default, 60 s, would end a longer training
                rpc.rpc_async(name, train, args=(reference_to_it, trainer, trainers, cfg), timeout=0)
                for trainer, name in enumerate(workers[1:], start=1)
            ]
            counts = torch.futures.wait_all(calls)
            print(f"updates by trainer: {counts}")
            for trainer, count in enumerate(counts, start=1):
                numbers = [number for sender, number, _ in server.log if sender == trainer]
                assert numbers == list(range(trainer - 1, cfg.updates, trainers))
                assert len(numbers) == count
            results = judge(server, trainers, cfg)
        print_on_rank_0(f"worker0 served, {', '.join(workers[1:])} trained")
        record_results("lab_23_parameter_server", results)


if __name__ == "__main__":
    run(main, Config())
