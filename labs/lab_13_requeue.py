"""The training script is killed, stopped, preempted and requeued, on 2, 3 and 1 ranks, and ends equal.

The script is labs/lab_10_train.py, as it is; this lab is what starts it.

Run it:      python labs/lab_13_requeue.py
Written by:  notebooks/13_elastic.ipynb
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from shared.runtime.errors import CourseError, InputError
from shared.runtime.processes import is_running
from shared.runtime.results import record_results
from shared.runtime.run import die_with_launcher, run

SCRIPT = Path(__file__).with_name("lab_10_train.py")
GOING_ON = "going on from step_"
EXIT_CODE = re.compile(r"exitcode +: (-?\d+)")  # in torchrun's summary of a failure
POLL_S = 0.1


@dataclass(frozen=True)
class Config:
    """Steps are counted when they are done. A signal takes effect some steps after the one given here."""

    epochs: int = 6
    steps: int = 174  # 6 epochs of 29
    save_every: int = 7
    kill_after: int = 30
    stop_after: int = 60
    preempt_after: int = 90
    tolerance: float = 1e-12
    patience_s: float = 240.0

    def options(self, checkpoints: Path) -> list[str]:
        """Of the script. In float64, so that rounding does not hide a mistake."""
        numbers = [f"--epochs={self.epochs}", f"--save-every={self.save_every}", "--log-every=1"]
        return ["--float64", "--augment", *numbers, f"--checkpoints={checkpoints}"]


# --- The script, seen from outside ---


@dataclass
class Attempt:
    """What the ranks did from one start to the next, in steps that were done before and after it."""

    first: int
    last: int


def attempts_in(text: str) -> list[Attempt]:
    """What rank 0 wrote, cut where a new rank 0 begins. A line without its end is left out."""
    found: list[Attempt] = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        if line.startswith(GOING_ON):
            step = int(line.removeprefix(GOING_ON))
            found.append(Attempt(step, step))
        elif line.startswith('{"step"'):
            step = json.loads(line)["step"]
            if not found or step <= found[-1].last:
                found.append(Attempt(0, 0))  # it found no checkpoint
            found[-1].last = step
    return found


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


class Launch:
    """A launcher with the script of lesson 10. It dies with this process, and its ranks die with it."""

    def __init__(self, name: str, launcher: list[str], options: list[str], folder: Path, **environment: str):
        self.name = name
        self.output = folder / f"{name}.out"
        self.errors = folder / f"{name}.err"
        self.ranks: list[Rank] = []
        self.started = time.time()
        self.ended: float | None = None
        with self.output.open("w") as output, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, str(SCRIPT), *options],
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
                told = child.environ()
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

    def __init__(self, folder: Path, cfg: Config) -> None:
        self.folder = folder
        self.cfg = cfg
        self.launches: list[Launch] = []

    def start(self, name: str, launcher: list[str], checkpoints: str, **environment: str) -> Launch:
        options = self.cfg.options(self.folder / checkpoints)
        self.launches.append(Launch(name, launcher, options, self.folder, **environment))
        return self.launches[-1]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self.cfg.patience_s
        while True:
            for launch in self.launches:
                launch.look()
            if condition():
                return
            if time.monotonic() > end:
                raise CourseError(f"{self.said()}\nwaited {self.cfg.patience_s:.0f} s for {what}")
            time.sleep(POLL_S)

    def until_step(self, launch: Launch, attempt: int, step: int) -> None:
        """Until an attempt, counted from 0, has done ``step`` steps. The launch must still run then."""

        def reached() -> bool:
            attempts = launch.attempts()
            if len(attempts) > attempt and attempts[attempt].last >= step:
                return True
            if launch.ended is not None:
                raise CourseError(f"{self.said()}\n{launch.name} ended before step {step}")
            return False

        self.until(reached, f"step {step} of {launch.name}")

    def exit_code(self, launch: Launch) -> int:
        """Wait for the launcher's end. No rank may outlive it."""
        self.until(lambda: launch.ended is not None, f"the end of {launch.name}")
        self.until(lambda: not launch.running(), f"the end of the ranks of {launch.name}")
        return launch.process.returncode

    def said(self) -> str:
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


def assert_same_end(run_folder: Path, unbroken: Path, cfg: Config) -> None:
    """Compare the last checkpoints of two runs: every weight, and its momentum."""
    import torch  # not at the top: it takes seconds, and here nothing waits for them
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    from shared.training.parity import assert_all_equal

    ends = []
    for folder in (run_folder, unbroken):
        expect("the step of the last checkpoint", newest(folder), cfg.steps)
        file = folder / "end.pt"
        dcp_to_torch_save(folder / f"step_{cfg.steps:08d}", file)
        end = torch.load(file)
        momentum = end["optimizer"]["state"]
        buffers = [(f"momentum of {name}", one["momentum_buffer"]) for name, one in momentum.items()]
        ends.append(sorted([*end["model"].items(), *buffers], key=lambda pair: pair[0]))
    assert_all_equal("the end", ends[0], ends[1], cfg.tolerance)


# --- The story of one run ---


@dataclass
class Story:
    watch: Watch
    cfg: Config
    rows: list[dict] = field(default_factory=list)  # one for each attempt

    @property
    def checkpoints(self) -> Path:
        return self.watch.folder / "run"

    def note(self, job: int, ranks: int, attempt: Attempt, ended_by: str) -> None:
        steps = {"first": attempt.first, "last": attempt.last, "kept": newest(self.checkpoints)}
        self.rows.append({"job": job, "ranks": ranks, "ended by": ended_by, **steps})

    def goes_on_from(self, attempt: Attempt) -> None:
        """A new attempt begins where the checkpoint before it ended."""
        expect("the new ranks go on from step", attempt.first, self.rows[-1]["kept"])

    def nothing_is_lost(self) -> None:
        expect("the step of the newest checkpoint", self.rows[-1]["kept"], self.rows[-1]["last"])


def kill_a_rank(story: Story, job: Launch, ranks: int) -> None:
    """SIGKILL for the last rank. torchrun ends the others, and starts all again."""
    cfg = story.cfg
    story.watch.until_step(job, attempt=0, step=cfg.kill_after)
    first_ranks = job.running()
    last_rank = max(first_ranks, key=lambda rank: rank.number)
    os.kill(last_rank.pid, signal.SIGKILL)
    story.watch.until(lambda: all(rank.ended for rank in first_ranks), "the end of the first ranks")
    story.note(1, ranks, job.attempts()[0], "SIGKILL of a rank")
    lost = story.rows[-1]["last"] - story.rows[-1]["kept"]
    if not 0 <= lost <= 2 * cfg.save_every:
        raise CourseError(f"a kill cost {lost} steps, although every {cfg.save_every} steps were saved")
    print(f"job 1, {ranks} ranks: SIGKILL of rank {last_rank.number}")
    story.watch.until_step(job, attempt=1, step=cfg.stop_after)
    story.goes_on_from(job.attempts()[1])
    print(f"    torchrun starts {ranks} new ranks; they go on from the newest complete checkpoint")


def stop_by_one_rank(story: Story, job: Launch, ranks: int) -> None:
    """SIGUSR1 for rank 0 alone: it asks the others, and all leave after the same step."""
    rank_0 = min(job.running(), key=lambda rank: rank.number)
    os.kill(rank_0.pid, signal.SIGUSR1)
    code = story.watch.exit_code(job)
    story.note(1, ranks, job.attempts()[1], "SIGUSR1 to a rank")
    story.nothing_is_lost()
    codes = set(EXIT_CODE.findall(job.errors.read_text()))
    expect(
        "exit codes of the ranks", codes - {"-15"}, {"75"}
    )  # -15: torchrun's SIGTERM met a rank at the exit
    expect("exit code of torchrun", code, 1)
    print(
        "    SIGUSR1 to rank 0: all ranks save and leave with exit code 75, torchrun with 1; no step is lost"
    )


def preempt(story: Story, job: Launch, ranks: int) -> None:
    """SIGTERM for torchrun, as a scheduler sends it. torchrun hands it on to its ranks."""
    story.watch.until_step(job, attempt=0, step=story.cfg.preempt_after)
    job.process.terminate()
    code = story.watch.exit_code(job)
    story.goes_on_from(job.attempts()[0])
    story.note(2, ranks, job.attempts()[0], "SIGTERM to torchrun")
    story.nothing_is_lost()
    expect("exit code of torchrun", code, 1)
    print(f"job 2, {ranks} ranks: goes on where job 1 stopped")
    print("    SIGTERM to torchrun: all ranks save and leave, torchrun with exit code 1; no step is lost")


def finish(story: Story, job: Launch) -> None:
    code = story.watch.exit_code(job)
    story.goes_on_from(job.attempts()[0])
    story.note(3, 1, job.attempts()[0], "the end")
    expect("exit code of torchrun", code, 0)
    print("job 3, 1 rank: goes on where job 2 stopped, and ends with exit code 0")


def main(cfg: Config, *arguments: str) -> None:
    if len(arguments) > 1 or not all(one.isdecimal() and 2 <= int(one) <= 8 for one in arguments):
        raise InputError("give the number of ranks of the first job, from 2 to 8")
    ranks = int(arguments[0]) if arguments else 2
    with tempfile.TemporaryDirectory() as name:
        watch = Watch(Path(name), cfg)
        story = Story(watch, cfg)
        try:
            job = watch.start("job 1", torchrun(ranks, restarts=1), "run")
            unbroken = watch.start("unbroken", [], "unbroken")  # one process, beside job 1
            kill_a_rank(story, job, ranks)
            stop_by_one_rank(story, job, ranks)
            preempt(story, watch.start("job 2", torchrun(ranks + 1), "run"), ranks + 1)
            finish(story, watch.start("job 3", torchrun(1), "run"))
            expect("exit code of the unbroken run", watch.exit_code(unbroken), 0)
            assert_same_end(story.checkpoints, watch.folder / "unbroken", cfg)
        finally:
            watch.close()
    print(f"no process is left; weights and momentum equal the unbroken run's within {cfg.tolerance:.0e}")
    record_results("lab_13_requeue", {"rows": story.rows, "steps": cfg.steps, "save every": cfg.save_every})


if __name__ == "__main__":
    run(main, Config(), *sys.argv[1:])
