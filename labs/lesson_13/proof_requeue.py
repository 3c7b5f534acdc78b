"""The training script is killed, asked to leave, and requeued, on 2, 3 and 1 ranks, and ends equal.

The script is labs/lab_10_train.py, as it is; this lab is what starts it.

Run it:      python labs/lesson_13/proof_requeue.py
"""

import os
import re
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from shared.runtime.errors import CourseError, InputError
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.launches import (
    Attempt,
    Launch,
    Rank,
    Training,
    Watch,
    assert_same_end,
    expect,
    newest,
    torchrun,
)

SCRIPT = Path(__file__).parents[1] / "lab_10_train.py"
EXIT_CODE = re.compile(r"exitcode +: (-?\d+)")  # in torchrun's summary of a failure


@dataclass(frozen=True)
class Config(Training):
    """A signal takes effect some steps after the one given here."""

    script: Path = SCRIPT
    kill_after: int = 30
    ask_a_rank_after: int = 55
    preempt_after: int = 80
    ask_the_last_after: int = 105


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
        expect("the new ranks resume from step", attempt.first, self.rows[-1]["kept"])

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
    story.watch.until_step(job, attempt=1, step=cfg.ask_a_rank_after)
    story.goes_on_from(job.attempts()[1])
    print(f"    torchrun starts {ranks} new ranks; they resume from the newest complete checkpoint")


def signal_rank_0(job: Launch) -> list[Rank]:
    """SIGUSR1 for rank 0 alone: it asks the others, and all leave after the same step."""
    ranks = job.running()
    rank_0 = min(ranks, key=lambda rank: rank.number)
    os.kill(rank_0.pid, signal.SIGUSR1)
    return ranks


def ask_a_rank(story: Story, job: Launch, ranks: int) -> None:
    """With a restart left, torchrun takes those who leave for a failure, and starts all again."""
    asked = signal_rank_0(job)
    story.watch.until(lambda: all(rank.ended for rank in asked), "the end of the ranks that were asked")
    story.note(1, ranks, job.attempts()[1], "SIGUSR1 to a rank")
    story.nothing_is_lost()
    story.watch.until_step(job, attempt=2, step=story.cfg.preempt_after)
    story.goes_on_from(job.attempts()[2])
    print("    SIGUSR1 to rank 0: all save and leave; torchrun has restarts left, and starts them again")


def preempt(story: Story, job: Launch, ranks: int) -> None:
    """SIGTERM for torchrun, as a scheduler sends it. torchrun hands it on to its ranks, and ends."""
    job.process.terminate()
    code = story.watch.exit_code(job)
    story.note(1, ranks, job.attempts()[2], "SIGTERM to torchrun")
    story.nothing_is_lost()
    expect("exit code of torchrun", code, 1)
    print("    SIGTERM to torchrun, with a restart left: all save and leave, torchrun with exit code 1")


def ask_the_last(story: Story, job: Launch, ranks: int) -> None:
    """SIGUSR1 again. Without a restart left, torchrun leaves, too."""
    story.watch.until_step(job, attempt=0, step=story.cfg.ask_the_last_after)
    story.goes_on_from(job.attempts()[0])
    signal_rank_0(job)
    code = story.watch.exit_code(job)
    story.note(2, ranks, job.attempts()[0], "SIGUSR1 to a rank")
    story.nothing_is_lost()
    codes = set(EXIT_CODE.findall(job.errors.read_text()))
    codes.discard("-15")  # torchrun's SIGTERM met a rank at the exit
    expect("exit codes of the ranks", codes, {"75"})
    expect("exit code of torchrun", code, 1)
    print(f"job 2, {ranks} ranks: resumes where job 1 stopped")
    print("    SIGUSR1 to rank 0: all save and leave with exit code 75, torchrun with 1")


def finish(story: Story, job: Launch) -> None:
    code = story.watch.exit_code(job)
    story.goes_on_from(job.attempts()[0])
    story.note(3, 1, job.attempts()[0], "the end")
    expect("exit code of torchrun", code, 0)
    print("job 3, 1 rank: resumes where job 2 stopped, and ends with exit code 0")


def main(cfg: Config, *arguments: str) -> None:
    if len(arguments) > 1 or not all(number.isdecimal() and 2 <= int(number) <= 8 for number in arguments):
        raise InputError("give the number of ranks of the first job, from 2 to 8")
    ranks = int(arguments[0]) if arguments else 2
    with tempfile.TemporaryDirectory() as name:
        watch = Watch(Path(name), cfg)
        story = Story(watch, cfg)
        try:
            job = watch.start("job 1", torchrun(ranks, restarts=3), "run")
            unbroken = watch.start("unbroken", [], "unbroken")  # one process, beside job 1
            kill_a_rank(story, job, ranks)
            ask_a_rank(story, job, ranks)
            preempt(story, job, ranks)
            ask_the_last(story, watch.start("job 2", torchrun(ranks + 1), "run"), ranks + 1)
            finish(story, watch.start("job 3", torchrun(1), "run"))
            expect("exit code of the unbroken run", watch.exit_code(unbroken), 0)
            assert_same_end(story.checkpoints, watch.folder / "unbroken", cfg)
        finally:
            watch.close()
    print(f"no process is left; weights and momentum equal the unbroken run's within {cfg.tolerance:.0e}")
    record_results("13_requeue", {"rows": story.rows, "steps": cfg.steps, "save every": cfg.save_every})


if __name__ == "__main__":
    run(main, Config(), *sys.argv[1:])
