"""Launches of the training script, labs/lab_10_train.py, seen from outside. Lessons 13 and 27 use them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from shared.runtime.children import is_running
from shared.runtime.errors import CourseError
from shared.runtime.results import ROOT
from shared.runtime.run import die_with_launcher

RESUMING = "resuming from step_"
POLL_S = 0.1


@dataclass(frozen=True)
class Training:
    """One training, however often it is started. Steps are counted when they are done."""

    script: Path = ROOT / "labs" / "lab_10_train.py"
    epochs: int = 6
    steps: int = 174  # 6 epochs of 29
    save_every: int = 7
    tolerance: float = 1e-12
    patience_s: float = 240.0

    def options(self, checkpoints: Path) -> list[str]:
        """Of the script. In float64, so that rounding does not hide a mistake."""
        numbers = [f"--epochs={self.epochs}", f"--save-every={self.save_every}", "--log-every=1"]
        return ["--float64", "--augment", *numbers, f"--checkpoints={checkpoints}"]


@dataclass
class Attempt:
    """What the ranks did from one start to the next, in steps that were done before and after it."""

    first: int
    last: int


def attempts_in(text: str) -> list[Attempt]:
    """What rank 0 wrote, cut where a new rank 0 begins. A line without its end is left out."""
    attempts: list[Attempt] = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        if line.startswith(RESUMING):
            step = int(line.removeprefix(RESUMING))
            attempts.append(Attempt(step, step))
        elif line.startswith('{"step"'):
            step = json.loads(line)["step"]
            if not attempts or step <= attempts[-1].last:
                attempts.append(Attempt(0, 0))  # it found no checkpoint
            attempts[-1].last = step
    return attempts


def newest(checkpoints: Path) -> int:
    """Steps that are done in the newest complete checkpoint; 0 if there is none."""
    names = [path.name for path in checkpoints.glob("step_*") if path.suffix != ".part"]
    return max((int(name.removeprefix("step_")) for name in names), default=0)


@dataclass
class Rank:
    """The process of a rank: from when to when it was seen, and what its launcher had told it."""

    pid: int
    told: dict[str, str]
    started: float
    ended: float | None = None

    @property
    def number(self) -> int:
        return int(self.told["RANK"])


def _told(process: psutil.Process) -> dict[str, str]:
    """The environment of a process; nothing if it has ended, or if it is not ours to read, as before exec."""
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # the former includes zombies
        return {}


class Launch:
    """A process that runs ``command``. It dies with this process, and its ranks die with it."""

    def __init__(self, name: str, command: list[str], folder: Path, **environment: str) -> None:
        self.name = name
        self.output = folder / f"{name}.out"
        self.errors = folder / f"{name}.err"
        self.ranks: list[Rank] = []
        self.started = time.time()
        self.ended: float | None = None
        with self.output.open("w") as output, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=errors,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
                preexec_fn=die_with_launcher,
            )

    def look(self) -> None:
        """Note which processes have come and which have gone."""
        now = time.time()
        if self.ended is None and self.process.poll() is not None:
            self.ended = now
        known = [rank.pid for rank in self.ranks]
        try:
            for child in psutil.Process(self.process.pid).children():
                if child.pid in known:
                    continue
                told = _told(child)
                if "RANK" in told:  # else it has been forked, but does not run the script yet
                    self.ranks.append(Rank(child.pid, told, child.create_time()))
        except psutil.NoSuchProcess:
            pass  # one of them has ended just now
        for rank in self.ranks:
            if rank.ended is None and not is_running(rank.pid):
                rank.ended = now

    def running(self) -> list[Rank]:
        self.look()
        return [rank for rank in self.ranks if rank.ended is None]

    def attempts(self) -> list[Attempt]:
        return attempts_in(self.output.read_text())


class Watch:
    """Starts launches, sees their processes come and go, and leaves none behind."""

    def __init__(self, folder: Path, training: Training) -> None:
        self.folder = folder
        self.training = training
        self.launches: list[Launch] = []

    def start(self, name: str, launcher: list[str], checkpoints: str, **environment: str) -> Launch:
        options = self.training.options(self.folder / checkpoints)
        command = [sys.executable, *launcher, str(self.training.script), *options]
        self.launches.append(Launch(name, command, self.folder, **environment))
        return self.launches[-1]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self.training.patience_s
        while True:
            for launch in self.launches:
                launch.look()
            if condition():
                return
            if time.monotonic() > end:
                raise CourseError(f"{self.errors()}\nwaited {self.training.patience_s:.0f} s for {what}")
            time.sleep(POLL_S)

    def until_step(self, launch: Launch, attempt: int, step: int) -> None:
        """Until an attempt, counted from 0, has done ``step`` steps. The launch must still run then."""

        def reached() -> bool:
            attempts = launch.attempts()
            if len(attempts) > attempt and attempts[attempt].last >= step:
                return True
            if launch.ended is not None:
                raise CourseError(f"{self.errors()}\n{launch.name} ended before step {step}")
            return False

        self.until(reached, f"step {step} of {launch.name}")

    def exit_code(self, launch: Launch) -> int:
        """Wait for the launcher's end. No rank may outlive it."""
        self.until(lambda: launch.ended is not None, f"the end of {launch.name}")
        self.until(lambda: not launch.running(), f"the end of the ranks of {launch.name}")
        return launch.process.returncode

    def errors(self) -> str:
        return "\n".join(launch.errors.read_text()[-2000:] for launch in self.launches)

    def close(self) -> None:
        for launch in self.launches:
            left = launch.running()
            launch.process.kill()
            launch.process.wait()
            for rank in left:
                if is_running(rank.pid):
                    os.kill(rank.pid, signal.SIGKILL)


def torchrun(ranks: int, restarts: int = 0) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]


def expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise CourseError(f"{what}: expected {expected}, found {found}")


def assert_same_end(run_folder: Path, unbroken: Path, training: Training) -> int:
    """Compare the last checkpoints of two runs: every weight, and its momentum. Return how many numbers."""
    import torch  # not at the top: it takes seconds, and here nothing waits for them
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    from shared.training.parity import assert_all_equal

    ends = []
    for folder in (run_folder, unbroken):
        expect("the step of the last checkpoint", newest(folder), training.steps)
        file = folder / "end.pt"
        dcp_to_torch_save(folder / f"step_{training.steps:08d}", file)
        end = torch.load(file)
        momentum = end["optimizer"]["state"]
        buffers = [(f"momentum of {name}", state["momentum_buffer"]) for name, state in momentum.items()]
        ends.append(sorted([*end["model"].items(), *buffers], key=lambda pair: pair[0]))
    assert_all_equal("the end", ends[0], ends[1], training.tolerance)
    return sum(tensor.numel() for _, tensor in ends[0])
