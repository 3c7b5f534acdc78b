"""Kill training processes again and again, and count the steps that are lost: by the snapshot interval.

Run it:      python labs/lab_13_interval.py
Written by:  notebooks/13_elastic.ipynb
"""

import os
import random
import signal
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import die_with_launcher, run
from shared.training.checkpoint import load_checkpoint, save_atomically
from shared.training.data import Images, load_images
from shared.training.parity import assert_all_equal, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 600
    batch: int = 32
    mean: int = 30  # steps from one kill to the next, on average
    intervals: tuple[int, ...] = (4, 8, 16, 32)
    seed: int = 13


def kill_times(cfg: Config) -> set[int]:
    """The readings of the clock at which a kill comes: it counts all steps, also those done twice."""
    draws = random.Random(cfg.seed)
    now = 0
    times = set()
    for _ in range(1000):
        now += max(1, round(draws.expovariate(1 / cfg.mean)))
        times.add(now)
    return times


def tick(clock: Path) -> int:
    """One step more on a clock that survives kills: the size of a file. Returns what it shows."""
    with clock.open("ab") as file:
        file.write(b".")
        return file.tell()


def new_run(cfg: Config) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(cfg.seed)
    model = nn.Linear(64, 10).double()
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def train(path: Path, clock: Path, interval: int, kill_at: set[int], data: Images, cfg: Config) -> nn.Module:
    """Resume, train on, save every ``interval`` steps; die by SIGKILL when the clock says so."""
    model, optimizer = new_run(cfg)
    done = 0
    if path.exists():
        saved = load_checkpoint(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    x = data.train_x.flatten(1).double()
    y = data.train_y
    for step in range(done + 1, cfg.steps + 1):
        batch = torch.randint(len(x), (cfg.batch,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        if tick(clock) in kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % interval == 0 or step == cfg.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_atomically({"step": step, **state}, path)
    return model


def start(interval: int, folder: Path, data: Images, cfg: Config) -> int:
    """A process that trains from the last snapshot on. Returns its process id."""
    child = os.fork()
    if child == 0:
        die_with_launcher()
        path = folder / f"{interval}.pt"
        clock = folder / f"{interval}.clock"
        try:
            train(path, clock, interval, kill_times(cfg), data, cfg)
            os._exit(0)
        except Exception:
            traceback.print_exc()
        finally:  # it ends here, after Ctrl-C too: further up it would clear away the folder of all
            os._exit(1)
    return child


def restart_until_done(folder: Path, data: Images, cfg: Config) -> dict[int, int]:
    """What torchrun does, in small: start a process anew until one ends well. Returns kills by interval."""
    kills = {}
    running = {}  # intervals by process id; all of them train side by side
    for interval in cfg.intervals:
        kills[interval] = 0
        running[start(interval, folder, data, cfg)] = interval
    while running:
        child, status = os.wait()
        interval = running.pop(child)
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, -signal.SIGKILL):
            for other in running:  # nobody may write into the folder any more
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            raise CourseError(f"a child was to be killed or to end well, but its exit code was {code}")
        if code:
            kills[interval] += 1
            running[start(interval, folder, data, cfg)] = interval
    return kills


def reference(folder: Path, data: Images, cfg: Config) -> nn.Module:
    """The unbroken run."""
    return train(folder / "unbroken.pt", folder / "unbroken.clock", cfg.steps, set(), data, cfg)


def main(cfg: Config) -> None:
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork: the child would wait for them
    # Once, before the forks: the images, and what torch loads only when an optimizer makes a step.
    data = load_images("digits")
    _, optimizer = new_run(cfg)
    optimizer.step()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for interval, kills in restart_until_done(folder, data, cfg).items():
            lost = (folder / f"{interval}.clock").stat().st_size - cfg.steps
            rows.append({"interval": interval, "kills": kills, "lost": lost})
            print(f"a snapshot every {interval:2} steps: {kills:2} kills, {lost:3} steps lost")
        unbroken = reference(folder, data, cfg)  # after the forks: a fork may not follow a backward pass
        for interval in cfg.intervals:
            model, _ = new_run(cfg)
            model.load_state_dict(load_checkpoint(folder / f"{interval}.pt")["model"])
            assert_all_equal(f"every {interval} steps", parameters(model), parameters(unbroken), 0.0)
    print("all of them end with the weights of the unbroken run, bit for bit")
    record_results("lab_13_interval", {"rows": rows, "steps": cfg.steps, "mean": cfg.mean})


if __name__ == "__main__":
    run(main, Config())
