"""The training script under a real Slurm: out of time, preempted, a node lost; it ends equal each time.

The job script is labs/lab_27_train.sbatch, the training script labs/lab_10_train.py, both unmodified.

Run it:  python labs/lesson_27/requeue.py
"""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import die_with_launcher, run
from shared.training.launches import Attempt, Training, assert_same_end, attempts_in, expect, newest

from lesson_27 import needs
from lesson_27.slurm import ADDRESSES, ENDED, Slurm, environment_of

JOB_SCRIPT = Path(__file__).resolve().parents[1] / "lab_27_train.sbatch"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "CARD": "lo"}  # all nodes are here


@dataclass(frozen=True)
class Config(Training):
    nodes: tuple[str, ...] = ADDRESSES  # three; the job takes two of them
    events: tuple[int, int, int] = (30, 60, 90)  # the step after which a job is held, and something happens


class Job:
    """The training, as a job of two nodes."""

    def __init__(self, slurm: Slurm, folder: Path, cfg: Config, job_script: Path = JOB_SCRIPT) -> None:
        self.slurm = slurm
        self.checkpoints = folder / "run"
        self.held: list[psutil.Process] = []
        options = cfg.options(self.checkpoints)
        self.number = slurm.submit(str(job_script), str(cfg.script), *options, folder=folder)
        self.log = folder / f"train-{self.number}.log"
        self.errors = folder / f"train-{self.number}.err"

    def attempts(self) -> list[Attempt]:
        return attempts_in(self.log.read_text(encoding="utf-8")) if self.log.is_file() else []

    def state(self) -> str:
        return self.slurm.state(self.number)

    def until_step(self, attempt: int, step: int) -> None:
        """Until an attempt, counted from 0, has done ``step`` steps."""

        def reached() -> bool:
            attempts = self.attempts()
            if len(attempts) > attempt and attempts[attempt].last >= step:
                return True
            if self.state() in ENDED:
                raise CourseError(f"{self.last_errors()}\nthe job ended before step {step}: {self.state()}")
            return False

        self.slurm.until(reached, f"step {step}")

    def ranks(self) -> dict[str, list[psutil.Process]]:
        """{node: the ranks that run there}."""
        ranks: dict[str, list[psutil.Process]] = {}
        for node in self.slurm.nodes:
            for pid in sorted(self.slurm.processes_of(node)):
                if "RANK" in environment_of(pid):
                    ranks.setdefault(node, []).append(psutil.Process(pid))
        return ranks

    def hold(self) -> list[str]:
        """Stop the ranks where they are, and return their nodes. They would be done before Slurm acts.

        Where Slurm ends a job, it lets them go on: it sends SIGCONT before SIGTERM.
        """
        ranks = self.ranks()
        self.held = [process for processes in ranks.values() for process in processes]
        for process in self.held:
            process.suspend()
        return sorted(ranks)

    def let_go_on(self) -> None:
        """When SIGTERM waits for each of them: the job script has sent it, and no SIGCONT before."""
        self.slurm.until(lambda: all(map(is_asked_to_end, self.held)), "SIGTERM at the ranks")
        for process in self.held:
            process.resume()

    def starts_again(self) -> None:
        """Wait until Slurm has put it into the queue again, and spare it the wait there."""
        self.slurm.start_now(self.number)

    def last_errors(self) -> str:
        return self.errors.read_text(encoding="utf-8")[-2000:] if self.errors.is_file() else ""


def is_asked_to_end(process: psutil.Process) -> bool:
    """Whether SIGTERM waits for a process that is stopped; proc(5)."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    except OSError:
        raise CourseError("a rank has ended before anybody sent it SIGTERM") from None
    pending = int(status.partition("ShdPnd:")[2].split()[0], base=16)
    return bool(pending & 1 << signal.SIGTERM - 1)


# --- What happens to the job ---


def out_of_time(job: Job, cfg: Config) -> str:
    """SIGUSR1 to the job script, as --signal=B:USR1@300 asks for 5 minutes before the end of its time."""
    job.slurm.call("scancel", "--signal=USR1", "--batch", job.number)
    job.let_go_on()
    return "SIGUSR1 to the job script"


def preempted(job: Job, cfg: Config) -> str:
    """Another job comes, in a partition that goes first, and wants all nodes for itself."""
    nodes = f"--nodes={len(cfg.nodes)}"
    more = ["--partition=urgent", "--exclusive", "--output=urgent.log", "--wrap=echo urgent"]
    urgent = job.slurm.submit(nodes, *more, folder=job.log.parent)
    job.slurm.until(lambda: job.slurm.state(urgent) == "COMPLETED", "the urgent job's end")
    return "preemption"


def node_lost(job: Job, cfg: Config) -> str:
    """All that runs on the second node dies at once.

    Slurm notices that after SlurmdTimeout, by default 300 s. A health check tells it earlier, as here.
    """
    (*_, second) = job.ranks()
    job.slurm.kill_node(second)
    job.slurm.call("scontrol", "update", f"NodeName={second}", "State=DOWN", "Reason=lost")
    return "loss of a node"


EVENTS = (out_of_time, preempted, node_lost)


def go_through(job: Job, cfg: Config) -> list[dict]:
    """All events, one in each attempt; returns a row for each attempt."""
    rows = []
    for number, (event, step) in enumerate(zip(EVENTS, cfg.events, strict=True)):
        job.until_step(number, step)
        nodes = job.hold()
        ended_by = event(job, cfg)
        job.starts_again()
        attempt = job.attempts()[number]
        kept = newest(job.checkpoints)
        rows.append({"nodes": nodes, "first": attempt.first, "last": attempt.last, "kept": kept})
        rows[-1]["ended by"] = ended_by
        lost = max(0, attempt.last - kept)
        if event is not node_lost:
            expect(f"steps lost by {ended_by}", lost, 0)
        elif lost > 2 * cfg.save_every:
            raise CourseError(f"the node cost {lost} steps, although every {cfg.save_every} steps were saved")
    job.slurm.until(lambda: job.state() in ENDED, "the end of the job")
    last = job.attempts()[-1]
    nodes = job.slurm.job(job.number)["NodeList"]
    rows.append({"nodes": [nodes], "first": last.first, "last": last.last, "ended by": "the end"})
    return rows


def check(job: Job, rows: list[dict], cfg: Config) -> None:
    for before, after in zip(rows, rows[1:], strict=False):
        expect("the next attempt goes on from step", after["first"], before["kept"])
    end = job.slurm.job(job.number)
    expect("state of the job", end["JobState"], "COMPLETED")
    expect("exit code of the job", end["ExitCode"], "0:0")
    expect("requeues that Slurm counted", end["Restarts"], str(len(EVENTS)))


def start_unbroken(folder: Path, cfg: Config) -> subprocess.Popen:
    """The same training in one process, which nothing happens to."""
    return subprocess.Popen(
        [sys.executable, str(cfg.script), *cfg.options(folder / "unbroken")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
        preexec_fn=die_with_launcher,
    )


def main(cfg: Config) -> None:
    reason = needs.slurm()
    if reason:
        needs.tell("lesson_27_requeue", reason)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unbroken = start_unbroken(folder, cfg)
        with Slurm(cfg.nodes, **ENVIRONMENT) as slurm:
            job = Job(slurm, folder, cfg)
            rows = go_through(job, cfg)
            check(job, rows, cfg)
        expect("exit code of the unbroken run", unbroken.wait(), 0)
        assert_same_end(job.checkpoints, folder / "unbroken", cfg)
    for number, row in enumerate(rows, start=1):
        print(f"attempt {number}: ended by {row['ended by']}")
    print(f"one job, {len(EVENTS)} requeues, exit code 0; the log of all attempts is one file")
    print(f"weights and momentum equal those of the unbroken run within {cfg.tolerance:.0e}")
    record_results("lesson_27_requeue", {"rows": rows, "steps": cfg.steps, "save every": cfg.save_every})


if __name__ == "__main__":
    run(main, Config())
