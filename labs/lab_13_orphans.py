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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.errors import CourseError
from shared.runtime.processes import is_running
from shared.runtime.run import die_with_launcher, run

# What each rank does first. The second one, PR_SET_PDEATHSIG with SIGKILL, the script of lesson 10 does, too.
RANK = {
    "plain ranks": "",
    "ranks that asked to die with it": "import ctypes; ctypes.CDLL(None).prctl(1, 9);",
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


def running_in(folders: dict[str, Path]) -> dict[str, list[int]]:
    """Process ids of the ranks that still run, by kind."""
    found = {}
    for kind, folder in folders.items():
        found[kind] = [pid for pid in ranks_in(folder) if is_running(pid)]
    return found


def wait_until(condition: Callable[[], bool], cfg: Config) -> None:
    end = time.monotonic() + cfg.patience_s
    while not condition():
        if time.monotonic() > end:
            raise CourseError("the ranks did not start, or did not end, in time")
        time.sleep(0.05)


def main(cfg: Config) -> None:
    with tempfile.TemporaryDirectory() as name:
        folders = {}
        for number, kind in enumerate(RANK):
            folders[kind] = Path(name) / str(number)
            folders[kind].mkdir()
        launchers = [start(RANK[kind], folder, cfg) for kind, folder in folders.items()]
        try:
            wait_until(lambda: all(len(ranks_in(folder)) == cfg.ranks for folder in folders.values()), cfg)
            for launcher in launchers:
                launcher.kill()
                launcher.wait()
            time.sleep(cfg.stay_s)
            left = running_in(folders)
        finally:
            for launcher in launchers:
                launcher.kill()
            for pids in running_in(folders).values():
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(running_in(folders).values()), cfg)
    for kind, pids in left.items():
        print(f"launcher killed, {kind}: {len(pids)} of {cfg.ranks} are still there")
    if [len(pids) for pids in left.values()] != [cfg.ranks, 0]:
        raise CourseError("plain ranks were to outlive their launcher, and the others were not")
    print("all of them have ended now")


if __name__ == "__main__":
    run(main, Config())
