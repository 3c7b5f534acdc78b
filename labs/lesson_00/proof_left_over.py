"""torchrun is killed: its ranks stay until somebody ends them.

Run it:      python labs/lesson_00/proof_left_over.py
"""

import subprocess
import sys
import time
from dataclasses import dataclass

import psutil

from shared.runtime.errors import CourseError
from shared.runtime.run import die_with_launcher, run


@dataclass(frozen=True)
class Config:
    ranks: int = 2
    start_s: float = 60.0  # how long torchrun may take to start them on a busy machine
    watched_s: float = 1.0


def main(cfg: Config) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cfg.ranks}"]
    torchrun = psutil.Popen(
        [*start, "--no-python", "sleep", "120"], stderr=subprocess.DEVNULL, preexec_fn=die_with_launcher
    )
    ranks: list[psutil.Process] = []
    try:
        give_up = time.monotonic() + cfg.start_s
        while len(ranks) < cfg.ranks and time.monotonic() < give_up:
            time.sleep(0.1)
            ranks = [child for child in torchrun.children() if child.name() == "sleep"]
        torchrun.kill()
        torchrun.wait()
        left = psutil.wait_procs(ranks, cfg.watched_s)[1]
        if len(left) != cfg.ranks:
            raise CourseError(f"torchrun was killed, and {len(left)} of {cfg.ranks} ranks are left")
        print(f"torchrun is gone, and {len(left)} ranks are left")
    finally:
        for rank in psutil.wait_procs(ranks, 0)[1]:
            rank.terminate()  # what `kill PID` does
    left = psutil.wait_procs(ranks, cfg.start_s)[1]
    print(f"after kill: {len(left)}")
    if left:
        raise CourseError("a rank outlives `kill`")


if __name__ == "__main__":
    run(main, Config())
