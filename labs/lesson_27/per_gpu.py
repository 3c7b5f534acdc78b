"""One task of Slurm for each rank, without torchrun: stopped by Slurm's notice, it ends equal to one process.

The job script is labs/lab_27_per_gpu.sbatch, the training script labs/lab_10_train.py, both unmodified.

Run it:  python labs/lesson_27/per_gpu.py
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.run import run
from shared.training.launches import assert_same_end, expect, newest

from lesson_27 import needs
from lesson_27.requeue import ENVIRONMENT, Config, Job, start_unbroken
from lesson_27.slurm import ENDED, KILL_WAIT_S, Slurm, environment_of

JOB_SCRIPT = Path(__file__).resolve().parents[1] / "lab_27_per_gpu.sbatch"


@dataclass(frozen=True)
class Notice(Config):
    nodes: tuple[str, ...] = ("127.0.0.1", "127.0.0.2")
    after: int = 30  # the step after which the notice comes


def places(job: Job) -> list[tuple[str, ...]]:
    """What each rank was told, in the order of the ranks: node, RANK, LOCAL_RANK, WORLD_SIZE."""
    told = []
    for node, processes in job.ranks().items():
        for process in processes:
            names = environment_of(process.pid)
            told.append((node, names["RANK"], names["LOCAL_RANK"], names["WORLD_SIZE"]))
    return sorted(told, key=lambda place: int(place[1]))


def main(cfg: Notice) -> None:
    reason = needs.slurm()
    if reason:
        needs.tell("lesson_27_per_gpu", reason)
        return
    first, second = cfg.nodes
    expected = [
        (first, "0", "0", "4"),
        (first, "1", "1", "4"),
        (second, "2", "0", "4"),
        (second, "3", "1", "4"),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unbroken = start_unbroken(folder, cfg)
        with Slurm(cfg.nodes, 0, KILL_WAIT_S, **ENVIRONMENT) as slurm:
            job = Job(slurm, folder, cfg, JOB_SCRIPT)
            job.until_step(0, cfg.after)
            expect("node, rank, local rank and world size of the ranks", places(job), expected)
            job.hold()
            slurm.call("scancel", "--signal=TERM", job.number)  # to all ranks, as --signal=TERM@300 does
            job.let_go_on()
            job.starts_again()
            expect("steps lost", job.attempts()[0].last - newest(job.checkpoints), 0)
            slurm.until(lambda: job.state() in ENDED, "the end of the job")
            expect("state of the job", job.state(), "COMPLETED")
        expect("exit code of the unbroken run", unbroken.wait(), 0)
        assert_same_end(job.checkpoints, folder / "unbroken", cfg)
    print("4 ranks, a task of Slurm for each: 2 on each of 2 nodes")
    print("notice to all ranks: no step lost, the job is queued again, and ends well")
    print(f"weights and momentum equal those of the unbroken run within {cfg.tolerance:.0e}")


if __name__ == "__main__":
    run(main, Notice())
