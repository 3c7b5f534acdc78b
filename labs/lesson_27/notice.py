"""The job script against Slurm's defaults: saves that take twice KillWait, and ranks that hang in C.

The job script is labs/lab_27_train.sbatch, unmodified, with torchrun on two nodes. One second stands for ten
of a real cluster: KillWait and torchrun's own patience are 3 s, by default 30, and a save takes 6 s for 60.

Run it:  python labs/lesson_27/notice.py [TRIAL ...]
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.errors import CourseError, InputError
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.launches import expect

from lesson_27 import needs
from lesson_27.slurm import ADDRESSES, ENDED, Slurm

JOB_SCRIPT = Path(__file__).resolve().parents[1] / "lab_27_train.sbatch"
RANK = Path(__file__).with_name("stand_in.py")


@dataclass(frozen=True)
class Config:
    job_script: Path = JOB_SCRIPT
    kill_wait_s: int = 3
    longest_save_s: int = 12
    patience_s: float = 240.0
    soon_s: float = 40.0  # within it a job must have ended of which a rank has failed

    @property
    def environment(self) -> dict[str, str]:
        """The default of torchrun's --shutdown-timeout is as long as KillWait, as it is in reality."""
        return {
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(self.kill_wait_s),
            "LONGEST_SAVE": str(self.longest_save_s),
        }


class Trial:
    """A job of two nodes, with one stand-in for a rank on each."""

    def __init__(self, name: str, slurm: Slurm, folder: Path, cfg: Config, *deeds: str) -> None:
        self.name = name
        self.slurm = slurm
        self.cfg = cfg
        self.folder = folder / name
        self.folder.mkdir()
        words = [str(cfg.job_script), str(RANK), str(self.folder), *deeds]
        self.number = slurm.submit(*words, folder=self.folder)

    def marks(self, name: str) -> int:
        return len(list(self.folder.glob(f"{name} *")))

    def until(self, condition: Callable[[], bool], what: str, patience_s: float = 0) -> None:
        try:
            self.slurm.until(condition, what, patience_s or self.cfg.patience_s)
        except CourseError:
            log = "".join(path.read_text(encoding="utf-8")[-2000:] for path in self.folder.glob("train-*"))
            raise CourseError(f"{log}\n{self.name}: waited for {what}") from None

    def notice(self) -> None:
        """What --signal=B:USR1@300 sends 5 minutes before the end of the job's time."""
        self.until(lambda: self.marks("ready") == 2, "both ranks")
        self.slurm.call("scancel", "--signal=USR1", "--batch", self.number)

    def queued_again(self) -> None:
        """Slurm counts it, and starts the job again by itself when its old credentials have expired."""

        def is_queued_again() -> bool:
            job = self.slurm.job(self.number)
            if job["Restarts"] == "0" and job["JobState"] in ENDED:
                raise CourseError(f"{self.name}: the job is not queued again: {job['JobState']}")
            return job["Restarts"] == "1"

        self.until(is_queued_again, "the job to be in the queue again")


def slow_save(trial: Trial) -> str:
    """The saves have ended before Slurm or torchrun killed a rank."""
    trial.queued_again()
    if trial.marks("saved") != 2:
        raise CourseError(f"{trial.name}: {trial.marks('saved')} of 2 ranks have saved, then all were killed")
    trial.until(lambda: trial.slurm.state(trial.number) in ENDED, "the end of the second attempt")
    expect("state of the job", trial.slurm.state(trial.number), "COMPLETED")
    return (
        "a save that takes twice KillWait: both ranks have saved, then the job is queued again, and ends well"
    )


def hang_at_the_notice(trial: Trial) -> str:
    trial.queued_again()
    expect("marks of the rank that hangs", trial.marks("saved"), 1)
    trial.slurm.call("scancel", trial.number)
    return "a rank hangs in C when the notice comes: torchrun kills it, and the job is queued again"


def one_fails_one_hangs(trial: Trial) -> str:
    state = trial.slurm.state
    trial.until(lambda: trial.marks("failed") == 1, "a rank that fails")
    trial.until(
        lambda: state(trial.number) in ENDED, "the end of a job of which a rank has failed", trial.cfg.soon_s
    )
    expect("state of the job", state(trial.number), "FAILED")
    return "a rank fails while another one hangs in C: Slurm ends the job and calls it FAILED"


TRIALS = {"slow save": slow_save, "hang": hang_at_the_notice, "failure": one_fails_one_hangs}


def main(cfg: Config, *names: str) -> None:
    unknown = sorted(set(names) - set(TRIALS))
    if unknown:
        raise InputError(f"{unknown[0]} is no trial; there are: {', '.join(TRIALS)}")
    reason = needs.slurm()
    if reason:
        needs.tell("lesson_27_notice", reason)
        return
    deeds = {
        "slow save": ("0", str(2 * cfg.kill_wait_s)),
        "hang": ("0", "hangs"),
        "failure": ("hangs", "fails"),
    }
    with (
        tempfile.TemporaryDirectory() as name,
        Slurm(ADDRESSES, 0, cfg.kill_wait_s, **cfg.environment) as slurm,
    ):
        folder = Path(name)
        trials = [Trial(each, slurm, folder, cfg, *deeds[each]) for each in names or TRIALS]
        for trial in trials:
            if trial.name != "failure":
                trial.notice()
        for trial in trials:
            print(TRIALS[trial.name](trial))
    if not names:
        record_results("lesson_27_notice", {"kill wait": cfg.kill_wait_s})


if __name__ == "__main__":
    run(main, Config(), *sys.argv[1:])
