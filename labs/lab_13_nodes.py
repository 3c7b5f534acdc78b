"""Two nodes on this machine: B joins the job of A, and goes away with its ranks.

Run it:      python labs/lab_13_nodes.py
Written by:  notebooks/13_elastic.ipynb
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

from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_port
from shared.runtime.processes import is_running
from shared.runtime.results import results_folder
from shared.runtime.run import die_with_launcher, run

TRAINING = "lab_13_train.py"
# Seconds, but for max_attempt: a node is given up after so many missed signs of life. By default 5, 3, 30.
RENDEZVOUS = ("keep_alive_interval=1", "keep_alive_max_attempt=4", "last_call_timeout=1")


@dataclass(frozen=True)
class Config:
    processes: tuple[int, int] = (2, 1)  # of node A, which stays, and of B, which comes and goes
    deadline_s: float = 240.0


def arguments(cfg: Config, node: int, port: int) -> list[str]:
    """What torchrun is called with on node 0 or 1; the same on both, but for the processes."""
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={HERE}:{port}", f"--rdzv-id=lesson-13-{port}"]
    elastic = ["--nnodes=1:2", "--max-restarts=3", f"--rdzv-conf={','.join(RENDEZVOUS)}"]
    elastic += [f"--local-addr=127.0.0.{1 + node}"]  # in this order their ranks are counted
    return [*elastic, *meet, f"--nproc-per-node={cfg.processes[node]}", TRAINING, "--two-nodes"]


class Node:
    """One agent of torchrun. It dies with this process, and its ranks die with it."""

    def __init__(self, cfg: Config, node: int, port: int, log: Path) -> None:
        self.log = log
        with log.open("w") as file:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *arguments(cfg, node, port)],
                cwd=Path(__file__).parent,
                env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "RANK_BY_RANK_DEVICE": "cpu"},
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_launcher,
            )

    def ranks(self) -> list[int]:
        """The processes that the agent has started; the kernel lists them."""
        listed = Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def kill(self) -> list[int]:
        """End the agent by SIGKILL. Returns its ranks, which nobody has told anything."""
        ranks = self.ranks()
        self.agent.kill()
        self.agent.wait()
        return ranks


class Watch:
    """Waits for events in the diary that the training writes, while all nodes that should run do run."""

    def __init__(self, job: str, deadline_s: float) -> None:
        self.job = job
        self.end = time.monotonic() + deadline_s
        self.path = results_folder() / "lab_13_nodes.jsonl"

    def until(self, what: str, true, nodes: list[Node]) -> None:
        while not true():
            failed = any(node.agent.poll() for node in nodes)
            if failed or time.monotonic() > self.end:
                logs = "\n".join(node.log.read_text()[-3000:] for node in nodes)
                raise CourseError(
                    f"{logs}\n{'a node failed' if failed else 'time is up'}, waited for: {what}"
                )
            time.sleep(0.05)

    def has(self, event: str, nodes: int) -> bool:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        entries = [entry for entry in map(json.loads, lines) if entry["job"] == self.job]
        return any((entry["event"], entry.get("nodes")) == (event, nodes) for entry in entries)


def main(cfg: Config) -> None:
    port = free_port()
    nodes = []
    watch = Watch(f"lesson-13-{port}", cfg.deadline_s)
    with tempfile.TemporaryDirectory() as folder:
        try:
            a = Node(cfg, 0, port, Path(folder) / "A")
            nodes.append(a)
            watch.until("A to need B", lambda: watch.has("wait", nodes=2), nodes)
            print("A has trained and waits; B is started")
            b = Node(cfg, 1, port, Path(folder) / "B")
            nodes.append(b)
            watch.until("A and B to train", lambda: watch.has("start", nodes=2), nodes)
            watch.until("them to have steps to lose", lambda: watch.has("wait", nodes=1), nodes)
            print("A and B train; B is killed, its agent and so its rank")
            ranks = b.kill()
            watch.until("B's rank to die", lambda: not any(map(is_running, ranks)), [a])
            watch.until("A to end well", lambda: a.agent.poll() == 0, [a])
            for line in re.findall(r"^(?:\d+ rank|step \d+:).*", a.log.read_text(), re.MULTILINE):
                print(f"rank 0 said: {line}")
        finally:
            left = [pid for node in nodes if node.agent.poll() is None for pid in node.kill()]
        watch.until("all ranks to be gone", lambda: not any(map(is_running, left)), [])


if __name__ == "__main__":
    run(main, Config())
