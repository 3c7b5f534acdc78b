"""Two agents of torchrun on this machine play two nodes, A with 3 processes and B with 4.

Run it:      python labs/lab_01_two_nodes.py
Written by:  notebooks/01_topology.ipynb
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shared.runtime.errors import CourseError
from shared.runtime.ports import free_port
from shared.runtime.run import die_with_launcher, run

NAMES = ("A", "B")  # of node 0 and node 1
REPORT = ["lab_01_reports.py", "lab_01_two_nodes"]  # each rank reports, under the second name
TELL = ["--no-python", "sh", "-c", "echo $GROUP_RANK $RANK $LOCAL_RANK"]  # each rank prints its variables


@dataclass(frozen=True)
class Config:
    processes: tuple[int, int] = (3, 4)
    visible: tuple[str, str] = ("3,4,5", "0,1,2,3")  # the GPUs that each node would use
    deadline_s: float = 120.0


class Agent(NamedTuple):
    process: subprocess.Popen
    output: Path  # what its ranks print
    messages: Path  # what it says itself


def arguments(cfg: Config, kind: str, node: int, port: int) -> list[str]:
    """What torchrun is called with on one node. ``kind``: static, c10d or c10d-ordered."""
    common = [
        "--nnodes=2",
        f"--node-rank={node}",
        f"--nproc-per-node={cfg.processes[node]}",
        "--rdzv-id=lesson-01",
    ]
    if kind == "static":
        return [*common, "--master-addr=127.0.0.1", f"--master-port={port}", *REPORT]
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    if kind == "c10d-ordered":
        meet.append(f"--local-addr=127.0.0.{1 + node}")
    return [*common, *meet, *TELL]


def start(cfg: Config, kind: str, node: int, port: int, folder: Path) -> Agent:
    """Start the agent of one node. It dies with this process, and its ranks with it."""
    output = folder / f"{node}.output"
    messages = folder / f"{node}.messages"
    # Both nodes are this machine: its GPUs, if any, would be used twice.
    settings = {"CUDA_VISIBLE_DEVICES": cfg.visible[node], "RANK_BY_RANK_DEVICE": "cpu"}
    with output.open("w") as out, messages.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *arguments(cfg, kind, node, port)],
            cwd=Path(__file__).parent,
            env=os.environ | settings,
            stdout=out,
            stderr=err,
            preexec_fn=die_with_launcher,
        )
    return Agent(process, output, messages)


def wait(agents: list[Agent], deadline_s: float) -> None:
    """Wait until all agents are done. When one fails or time is up, end all and raise ``CourseError``."""
    end = time.monotonic() + deadline_s
    try:
        while time.monotonic() < end:
            codes = [agent.process.poll() for agent in agents]
            if None not in codes or any(codes):  # all are done, or one has failed
                break
            time.sleep(0.05)
    finally:
        stop(agents)
    codes = [agent.process.wait() for agent in agents]
    if any(codes):
        text = "\n".join(agent.output.read_text() + agent.messages.read_text() for agent in agents)
        raise CourseError(f"{text}\nthe agents ended with exit codes {codes}")


def stop(agents: list[Agent]) -> None:
    """End the agents that still run."""
    for agent in agents:
        agent.process.terminate()  # nothing happens to one that is done
    for agent in agents:
        try:
            agent.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            agent.process.kill()


def reference(cfg: Config, order: tuple[int, int]) -> dict[int, list[tuple[int, int, int]]]:
    """{node: (group rank, rank, local rank) of its processes}, for agents that count off in this order."""
    expected = {}
    offset = 0
    for group_rank, node in enumerate(order):
        expected[node] = [(group_rank, offset + local, local) for local in range(cfg.processes[node])]
        offset += cfg.processes[node]
    return expected


def told_by(output: str) -> list[tuple[int, int, int]]:
    """(group rank, rank, local rank) of each line that a rank printed, by rank."""
    lines = [line.split() for line in output.splitlines()]
    return sorted((int(group_rank), int(rank), int(local)) for group_rank, rank, local in lines)


def main(cfg: Config, kind: str) -> None:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        agents = {node: start(cfg, kind, node, port, Path(folder)) for node in (1, 0)}  # B is started first
        wait(list(agents.values()), cfg.deadline_s)
        output = {node: agents[node].output.read_text() for node in (0, 1)}
        messages_of_b = agents[1].messages.read_text()
    if kind == "static":
        for node in (0, 1):
            command = " ".join(arguments(cfg, kind, node, port)).replace(str(port), "PORT")
            print(f"on {NAMES[node]}: torchrun {command}\n{output[node]}", end="")
        return

    told = {node: told_by(output[node]) for node in (0, 1)}
    for node, ranks in told.items():
        group_rank, first, _ = ranks[0]
        last = ranks[-1][1]
        print(f"{NAMES[node]}, --node-rank={node}: GROUP_RANK {group_rank}, RANK {first} to {last}")
    warning = re.search("node_rank is only used.*", messages_of_b)
    print(f"B's agent: {warning[0] if warning else 'no word about --node-rank'}")
    order = (1, 0) if kind == "c10d" else (0, 1)
    if told != reference(cfg, order):
        raise CourseError(f"{kind}: expected the nodes in the order {order}, but they say {told}")


if __name__ == "__main__":
    run(main, Config(), sys.argv[1] if len(sys.argv) > 1 else "static")
