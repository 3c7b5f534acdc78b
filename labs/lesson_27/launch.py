"""Labs of this course on two machines, as they are, with torchrun on each and 100 Mbit/s between them.

Run it:  python labs/lesson_27/launch.py 2

The last word is the number of ranks on each machine.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.errors import CourseError, InputError
from shared.runtime.results import record_results
from shared.runtime.run import die_with_launcher
from shared.training.launches import Training, assert_same_end

from lesson_27.hosts import Host, Network, network, run_with_hosts, sent

LABS = Path(__file__).resolve().parents[1]
WHO = LABS / "lab_27_who.py"
PORT = 29500
MARK = re.compile(r"^\[default\d+\]:", re.MULTILINE)  # --tee puts the local rank before each line
VARIABLES = {"GLOO_SOCKET_IFNAME": "eth0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # before torchrun
TRAINING = Training(epochs=1, steps=29, save_every=29)


@dataclass(frozen=True)
class Config:
    hosts: int = 2
    mbit: int = 100
    patience_s: float = 240.0


def command(head: Host, host: Host, ranks: int, hosts: int, logs: Path | str) -> list[str]:
    """What to type on ``host``, up to the script. It is the same on all, but for the last address."""
    meet = ["--rdzv-backend=c10d", "--rdzv-id=lesson-27", f"--rdzv-endpoint={head.name}:{PORT}"]
    patience = ["--rdzv-conf=join_timeout=120"]
    own = [f"--local-addr={host.address}"]
    keep = ["--tee=3", f"--log-dir={logs}"]
    return ["torchrun", f"--nnodes={hosts}", f"--nproc-per-node={ranks}", *meet, *patience, *keep, *own]


class Job:
    """torchrun with one script on each host."""

    def __init__(self, net: Network, ranks: int, folder: Path, script: Path, *arguments: str) -> None:
        self.folder = folder
        self.script = script
        self.agents: list[subprocess.Popen] = []
        before = [sent(host.pid) for host in net.hosts]
        self.net = net
        self.before = before
        folder.mkdir()
        environment = {**os.environ, **VARIABLES, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        for host in net.hosts:
            words = command(net.hosts[0], host, ranks, len(net.hosts), folder / host.name)
            launcher = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
            with self.output(host).open("w") as out, self.errors(host).open("w") as err:
                self.agents.append(
                    subprocess.Popen(
                        host.inside(*launcher, script, *arguments),
                        stdout=out,
                        stderr=err,
                        env=environment,
                        start_new_session=True,
                        preexec_fn=die_with_launcher,
                    )
                )

    def output(self, host: Host) -> Path:
        return self.folder / f"{host.name}.out"

    def errors(self, host: Host) -> Path:
        return self.folder / f"{host.name}.err"

    def wait(self, patience_s: float) -> str:
        """What the ranks printed, machine by machine. All agents must end well.

        Raises:
            CourseError: an agent failed, or they are not done in time.
        """
        end = time.monotonic() + patience_s
        while any(agent.poll() is None for agent in self.agents) and time.monotonic() < end:
            if any(agent.poll() for agent in self.agents):
                break
            time.sleep(0.05)
        codes = [agent.poll() for agent in self.agents]
        if any(code != 0 for code in codes):
            errors = "\n".join(self.errors(host).read_text()[-3000:] for host in self.net.hosts)
            raise CourseError(f"{errors}\n{self.script.name}: the agents ended with exit codes {codes}")
        return "".join(MARK.sub("", self.output(host).read_text()) for host in self.net.hosts)

    def sent(self) -> list[int]:
        """Bytes that each host has sent since the start of this job."""
        return [sent(host.pid) - first for host, first in zip(self.net.hosts, self.before, strict=True)]


def show_command(net: Network, ranks: int) -> None:
    for host in net.hosts:
        words = [*command(net.hosts[0], host, ranks, len(net.hosts), "logs"), WHO.name]
        variables = " ".join(f"{name}={value}" for name, value in VARIABLES.items())
        lines = [
            variables,
            " ".join(words[:3]),
            " ".join(words[3:6]),
            " ".join(words[6:9]),
            " ".join(words[9:]),
        ]
        print(f"on {host.name}:\n    " + " \\\n        ".join(lines))


def show_logs(folder: Path, host: Host) -> None:
    """The files of one host's ranks; torchrun adds a random word to the folder of a run."""
    names = sorted(
        path.relative_to(folder / host.name).as_posix() for path in (folder / host.name).rglob("*.log")
    )
    shown = [re.sub(r"(?<=lesson-27_)\w+", "RANDOM", name) for name in names]
    print(f"logs of {host.name}: " + ", ".join(shown))


def main(cfg: Config, *arguments: str) -> None:
    if len(arguments) > 1 or not all(word.isdecimal() and 1 <= int(word) <= 8 for word in arguments):
        raise InputError("give the number of ranks on each machine, from 1 to 8")
    ranks = int(arguments[0]) if arguments else 2
    with tempfile.TemporaryDirectory() as name, network(cfg.hosts, cfg.mbit) as net:
        folder = Path(name)
        show_command(net, ranks)
        first = Job(net, ranks, folder / "who", WHO)
        print(first.wait(cfg.patience_s), end="")
        show_logs(folder / "who", net.hosts[1])

        script, one_process, two_machines = TRAINING.script, folder / "alone", folder / "two"
        single = [sys.executable, str(script), *TRAINING.options(one_process)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        alone = subprocess.Popen(single, **quiet, preexec_fn=die_with_launcher)
        told = {}
        ring = Job(net, 1, folder / "ring", LABS / "lab_05_ring.py")
        print(f"\nlab_05_ring.py, unmodified:\n{ring.wait(cfg.patience_s)}", end="")
        told["lab_05_ring"] = ring.sent()
        training = Job(net, 1, folder / "train", script, *TRAINING.options(two_machines))
        lines = training.wait(cfg.patience_s).splitlines()
        told["lab_10_train"] = training.sent()
        if alone.wait(timeout=cfg.patience_s) != 0:
            raise CourseError(f"the training in one process ended with exit code {alone.returncode}")
        count = assert_same_end(two_machines, one_process, TRAINING)
    steps = [json.loads(line) for line in lines if line.startswith('{"step"')]
    print(f"\nlab_10_train.py, unmodified: {len(steps)} steps on two machines")
    within = f"within {TRAINING.tolerance:.0e}"
    print(f"{count:,} numbers, weights and momentum, equal those of one process {within}")
    record_results("lesson_27_launch", {"sent": told})


if __name__ == "__main__":
    run_with_hosts("lesson_27_launch", main, Config(), *sys.argv[1:])
