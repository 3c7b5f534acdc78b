"""Three ways in which torchrun itself fails to meet: no rank starts, and what it says helps little.

Run it:  python labs/lesson_02/agents.py
"""

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
import torch.distributed.run
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout

from shared.runtime.children import Child
from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_port
from shared.runtime.run import die_with_launcher, run

SCRIPT = str(
    Path(__file__).resolve().parents[1] / "lab_02_ways.py"
)  # any script: none of its ranks will start
NOWHERE = "no-such-host.invalid"  # RFC 6761: no name below .invalid is ever given out


@dataclass(frozen=True)
class Config:
    watched_s: float = 3.0  # how long we watch a torchrun that waits, after its first complaint
    start_s: float = 90.0  # how long torchrun itself may take to start on a busy machine
    limit_s: float = 60.0  # how long we wait for a torchrun that is to give up


def torchrun(*options: str) -> str:
    """What the command ``torchrun OPTIONS SCRIPT`` does, in this process."""
    torch.distributed.run.main([*options, "--nproc-per-node=2", SCRIPT])
    return "ended well"


def assert_gives_up(what: str, expected: str, agent: Child, cfg: Config) -> None:
    """``expected`` is all that the error says, without its traceback."""
    message = agent.outcome(cfg.limit_s)[0].rstrip(": ")
    if message != expected:
        raise CourseError(f"{what}: torchrun said {message!r}, expected {expected!r}")
    print(f"{what}\n  {message}")


def start_on_a_nameless_machine(log: Path) -> subprocess.Popen:
    """``torchrun --standalone`` on a machine whose own name leads nowhere."""
    # torchrun announces the address of its machine: --local-addr, or else the machine's own name. To change
    # the name takes root, so we pass one by --local-addr. torchrun treats both alike.
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--local-addr={NOWHERE}"]
    with log.open("w") as output:
        return subprocess.Popen(
            [*launcher, "--nproc-per-node=2", SCRIPT],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_launcher,
        )


def assert_waits(what: str, agent: subprocess.Popen, log: Path, cfg: Config) -> None:
    """It warns, and after a while it is still there and has started no rank."""
    complaint = re.compile(rf"network addresses of \({NOWHERE}, \d+\) cannot be retrieved")
    give_up = time.monotonic() + cfg.start_s
    text = ""
    while not complaint.search(text):
        if agent.poll() is not None or time.monotonic() > give_up:
            raise CourseError(f"torchrun should have complained about {NOWHERE}, but said: {text[-300:]!r}")
        time.sleep(0.1)
        text = log.read_text(encoding="utf-8")
    warning = re.sub(r", [0-9]+", ", PORT", complaint.search(text)[0])
    print(f"{what}\n  warning: ... {warning} ...")
    try:
        agent.wait(cfg.watched_s)
    except subprocess.TimeoutExpired:
        print(f"  {cfg.watched_s:.0f} s later it is still waiting. We end it.")
    else:
        raise CourseError(f"torchrun should have waited, but ended with exit code {agent.returncode}")
    if "together" in log.read_text(encoding="utf-8"):  # which rank 0 of that script prints
        raise CourseError("a rank has started")


def main(cfg: Config) -> None:
    of_two = ["--nnodes=2", "--rdzv-backend=c10d"]
    here = f"--rdzv-endpoint={HERE}:{free_port()}"
    missing = Child(torchrun, *of_two, here, "--rdzv-conf=join_timeout=2,close_timeout=1")
    unreachable = Child(torchrun, *of_two, f"--rdzv-endpoint={NOWHERE}", "--rdzv-conf=read_timeout=2")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        nameless = start_on_a_nameless_machine(log)
        try:
            assert_gives_up("other node missing", "RendezvousTimeoutError", missing, cfg)
            no_connection = "The connection to the C10d store has failed. See inner exception for details."
            assert_gives_up(
                "endpoint unreachable", f"RendezvousConnectionError: {no_connection}", unreachable, cfg
            )
            assert_waits("own name unknown", nameless, log, cfg)
        finally:
            nameless.terminate()
            nameless.wait()

    assert RendezvousTimeout().join == timedelta(minutes=10)
    store = dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    assert store.timeout == timedelta(minutes=5)
    print("defaults: 600 s to join, 300 s for a request to a TCPStore")


if __name__ == "__main__":
    run(main, Config())
