"""torchrun --standalone on a machine whose own name leads nowhere: it waits, and starts no rank.

Run it:      python labs/lab_02_no_name.py
Written by:  notebooks/02_rendezvous.ipynb
"""

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.errors import CourseError
from shared.runtime.run import die_with_launcher, run

SCRIPT = Path(__file__).with_name("lab_02_five_ways.py")  # any lab: none of its ranks will start


@dataclass(frozen=True)
class Config:
    name: str = "no-such-host.invalid"  # RFC 6761: no name below .invalid is ever given out
    watched_s: float = 5.0  # how long we watch it after its first complaint
    start_s: float = 90.0  # how long torchrun itself may take to start on a busy machine


def main(cfg: Config) -> None:
    # torchrun announces the address of its machine: --local-addr, or else the machine's own name. To change
    # the name takes root, so we pass one by --local-addr. torchrun treats both alike.
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--local-addr={cfg.name}"]
    complaint = re.compile(rf"network addresses of \({cfg.name}, \d+\) cannot be retrieved")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as output:
            torchrun = subprocess.Popen(
                [*launcher, "--nproc-per-node=2", str(SCRIPT)],
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_launcher,
            )
        try:
            give_up = time.monotonic() + cfg.start_s
            text = ""
            while not complaint.search(text):
                if torchrun.poll() is not None or time.monotonic() > give_up:
                    raise CourseError(f"torchrun was to complain about {cfg.name}, but said: {text[-300:]!r}")
                time.sleep(0.1)
                text = log.read_text(encoding="utf-8")
            print(f"torchrun warns: ... {re.sub(r', [0-9]+', ', PORT', complaint.search(text)[0])} ...")
            try:
                torchrun.wait(cfg.watched_s)
            except subprocess.TimeoutExpired:
                print(f"{cfg.watched_s:.0f} s later it is still waiting. We end it.")
            else:
                raise CourseError(f"torchrun was to wait, but ended with exit code {torchrun.returncode}")
        finally:
            torchrun.terminate()
            torchrun.wait()
        if "together" in log.read_text(encoding="utf-8"):  # which each rank 0 of that lab prints
            raise CourseError("a rank has started")
        print("Until then it had started no rank.")


if __name__ == "__main__":
    run(main, Config())
