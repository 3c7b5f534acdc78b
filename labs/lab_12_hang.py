"""The training script of lesson 10 on ranks of which the last one, in its first life, stops answering.

Run it:      torchrun --standalone --nproc-per-node=2 --max-restarts=1 labs/lab_12_hang.py FOLDER
Written by:  notebooks/12_uneven_inputs.ipynb

It saves in FOLDER. What torchrun does when it restarts the ranks takes 30 s; lab_12_chain makes that shorter.
"""

import faulthandler
import os
import signal
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from unittest.mock import patch

import lab_10_train as script
import torch
import torch._dynamo  # the first optimizer would import it, and take some of the time-out for that

from shared.runtime.errors import InputError
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    options: tuple[str, ...] = ("--epochs=1", "--float64", "--save-every=4", "--log-every=1000")
    timeout_s: int = 5
    hangs_in: int = 10  # step
    patience_s: int = 120  # for the start, which may take long on a busy machine


def say(text: str) -> None:
    """One line on stderr, at once: the order of lines is that of events, also across processes."""
    os.write(2, f"rank {os.environ['RANK']} {text}\n".encode())


def never_comes_back() -> None:
    """Like a read from a file server that is gone, or a lock that nobody gives back."""
    threading.Event().wait()


class HearsSignals(script.StopSign):
    """Tells of a SIGTERM, which the script notes and obeys at the end of a step; shows where the rank is."""

    def __init__(self, ranks: script.Ranks) -> None:
        super().__init__(ranks)
        faulthandler.register(signal.SIGTERM, chain=True)

    def note(self, number: int, frame: object) -> None:
        super().note(number, frame)
        say(f"notes {signal.Signals(number).name} and goes on")


def trainer_that_hangs(cfg: Config) -> type[script.Trainer]:
    """The script's trainer; in the first life of the group the last rank never ends one of its steps."""
    first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    class Hanging(script.Trainer):
        def train_step(self, images: torch.Tensor, labels: torch.Tensor, steps: int) -> torch.Tensor:
            last = self.ranks.rank == self.ranks.size - 1
            if first_life and last and self.step + 1 == cfg.hangs_in:
                complete = sorted(path.name for path in self.options.checkpoints.glob("step_????????"))
                say(f"hangs in step {cfg.hangs_in}, pid {os.getpid()}, complete: {', '.join(complete)}")
                never_comes_back()
            loss = super().train_step(images, labels, steps)
            if self.ranks.rank == 0:
                say(f"has made step {self.step}")
            return loss

    return Hanging


def wait_for_all(cfg: Config) -> None:
    """The short time-out is for training: until all ranks have loaded torch they wait for each other here."""
    store = script.store_of_this_attempt(timedelta(seconds=cfg.patience_s))
    ranks = range(int(os.environ["WORLD_SIZE"]))
    store.set(f"rank {os.environ['RANK']} is here", "yes")
    store.wait([f"rank {rank} is here" for rank in ranks], timedelta(seconds=cfg.patience_s))


def main(cfg: Config) -> None:
    if len(sys.argv) != 2:
        raise InputError("name the folder for checkpoints, and nothing else")
    wait_for_all(cfg)
    arguments = [*cfg.options, f"--timeout={cfg.timeout_s}", f"--checkpoints={sys.argv[1]}"]
    hanging = patch.object(script, "Trainer", trainer_that_hangs(cfg))
    with hanging, patch.object(script, "StopSign", HearsSignals):
        sys.exit(script.main(arguments))


if __name__ == "__main__":
    run(main, Config())
