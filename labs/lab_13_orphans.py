"""Kill a launcher: its ranks live on, unless they have asked the kernel to die with it.

Run it:      python labs/lab_13_orphans.py
Written by:  notebooks/13_elastic.ipynb
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.errors import CourseError
from shared.runtime.processes import is_running
from shared.runtime.run import die_with_launcher, run

# What each rank does. The second one is ours: run(main) of shared/runtime/run.py calls the same at its start.
RANK = {
    "plain ranks": "",
    "ranks of our labs": "import ctypes; ctypes.CDLL(None).prctl(1, 9);",  # PR_SET_PDEATHSIG, SIGKILL
}
SLEEP = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1], str(os.getpid())).touch(); time.sleep(120)"


@dataclass(frozen=True)
class Config:
    ranks: int = 2
    patience_s: float = 60.0
    stay_s: float = 1.0


def start(code: str, folder: Path, cfg: Config) -> subprocess.Popen:
    """A launcher whose ranks write their process ids into ``folder``, and sleep."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cfg.ranks}"]
    return subprocess.Popen(
        [*launch, "--no-python", sys.executable, "-c", code + SLEEP, folder],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_launcher,
    )


def ranks_in(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


def wait_until(true, cfg: Config) -> None:
    end = time.monotonic() + cfg.patience_s
    while not true():
        if time.monotonic() > end:
            raise CourseError("the ranks did not start, or did not end, in time")
        time.sleep(0.05)


def main(cfg: Config) -> None:
    with tempfile.TemporaryDirectory() as name:
        folders = {kind: Path(name) / str(number) for number, kind in enumerate(RANK)}
        for folder in folders.values():
            folder.mkdir()
        launchers = [start(RANK[kind], folder, cfg) for kind, folder in folders.items()]
        try:
            wait_until(lambda: all(len(ranks_in(folder)) == cfg.ranks for folder in folders.values()), cfg)
            for launcher in launchers:
                launcher.kill()
                launcher.wait()
            time.sleep(cfg.stay_s)
            left = {kind: sum(map(is_running, ranks_in(folder))) for kind, folder in folders.items()}
        finally:
            for launcher in launchers:
                launcher.kill()
            for pid in [pid for folder in folders.values() for pid in ranks_in(folder) if is_running(pid)]:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(is_running(p) for f in folders.values() for p in ranks_in(f)), cfg)
    for kind, count in left.items():
        print(f"launcher killed, {kind}: {count} of {cfg.ranks} are still there")
    if list(left.values()) != [cfg.ranks, 0]:
        raise CourseError("plain ranks were to outlive their launcher, and ours were not")
    print("all of them ended")


if __name__ == "__main__":
    run(main, Config())
