"""Two nodes on this machine: B joins the job of A, and is lost again with its rank.

Run it:      python labs/lesson_13/proof_nodes.py
"""

import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shared.runtime.ports import HERE, free_port
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.launches import Launch, Training, Watch, assert_same_end, expect, newest

# Seconds, but for max_attempt: a node is given up after so many missed signs of life. By default 5, 3, 30.
RENDEZVOUS = "keep_alive_interval=1,keep_alive_max_attempt=4,last_call_timeout=1"
NOTICED = "Detected 1 new nodes"  # what A's agent logs (torch/distributed/elastic/agent/server/api.py)
TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")


@dataclass(frozen=True)
class Config:
    training: Training = Training(Path(__file__).parents[1] / "lab_10_train.py")
    processes: tuple[int, int] = (2, 1)  # of node A, which stays, and of B, which comes and goes
    join_after: int = 30
    kill_after: int = 80


def torchrun_of_node(cfg: Config, node: int, port: int) -> list[str]:
    """What torchrun is called with on node 0 or 1; the same on both, but for processes and address."""
    elastic = ["--nnodes=1:2", "--max-restarts=3", f"--nproc-per-node={cfg.processes[node]}"]
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={HERE}:{port}", f"--rdzv-id=lesson-13-{port}"]
    conf = [f"--rdzv-conf={RENDEZVOUS}", f"--local-addr=127.0.0.{1 + node}"]  # ranks are counted by address
    return ["-m", "torch.distributed.run", *elastic, *meet, *conf]


def start_node(watch: Watch, cfg: Config, node: int, port: int) -> Launch:
    return watch.start(
        "AB"[node],
        torchrun_of_node(cfg, node, port),
        "run",
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # each rendezvous makes a new store for the ranks
        LOGLEVEL="INFO",  # of the agents
    )


def b_joins(watch: Watch, cfg: Config, a: Launch, port: int) -> tuple[Launch, int]:
    """Returns B, and the number of A's attempt in which both train."""
    watch.until_step(a, attempt=0, step=cfg.join_after)
    ranks = a.running()
    for rank in ranks:
        os.kill(rank.pid, signal.SIGSTOP)  # they would be done before B has imported torch
    b = start_node(watch, cfg, 1, port)
    watch.until(lambda: NOTICED in a.errors.read_text(), "A's agent to notice B")
    for rank in ranks:
        os.kill(rank.pid, signal.SIGCONT)
    watch.until(lambda: all(rank.ended for rank in ranks), "A's ranks to leave")
    expect("steps in the newest checkpoint", newest(watch.folder / "run"), a.attempts()[0].last)
    print("A has trained alone; B asks to join, and A's ranks save and leave: no step is lost")
    everybody = str(sum(cfg.processes))
    watch.until(lambda: any(rank.told["WORLD_SIZE"] == everybody for rank in a.running()), "a world with B")
    together = len(a.attempts())  # these ranks have yet to begin
    watch.until_step(a, attempt=together, step=cfg.kill_after)
    expect("A and B resume from step", a.attempts()[together].first, a.attempts()[together - 1].last)
    return b, together


def b_is_lost(watch: Watch, a: Launch, b: Launch) -> int:
    """SIGKILL for B's agent. Its rank dies with it, and A's ranks lose the connection."""
    ranks = a.running()
    b.process.kill()
    watch.exit_code(b)
    watch.until(lambda: all(rank.ended for rank in ranks), "the end of A's ranks")
    kept = newest(watch.folder / "run")
    print("A and B have trained together; B's agent is killed, its rank dies with it, A's ranks fail")
    expect("exit code of A", watch.exit_code(a), 0)
    expect("A resumes from step", a.attempts()[-1].first, kept)
    return kept


def worlds_of(a: Launch, b: Launch) -> list[list[dict]]:
    """The ranks that came out of each rendezvous, and what their agents had told them."""
    worlds: dict[int, list[dict]] = {}  # by port: each rendezvous has a new one
    for launch in (a, b):
        for rank in launch.ranks:
            told = {name: int(rank.told[name]) for name in TOLD}
            worlds.setdefault(told["MASTER_PORT"], []).append({"node": launch.name, **told})
    return list(worlds.values())


def main(cfg: Config) -> None:
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        watch = Watch(Path(name), cfg.training)
        try:
            a = start_node(watch, cfg, 0, port)
            unbroken = watch.start("unbroken", [], "unbroken")
            b, together = b_joins(watch, cfg, a, port)
            kept = b_is_lost(watch, a, b)
            expect("exit code of the unbroken run", watch.exit_code(unbroken), 0)
            assert_same_end(watch.folder / "run", watch.folder / "unbroken", cfg.training)
            attempts = a.attempts()
        finally:
            watch.close()
    print("A resumes alone from the newest complete checkpoint, and ends equal to the unbroken run")
    three = [vars(attempts[number]) for number in (0, together, -1)]
    record_results("13_nodes", {"worlds": worlds_of(a, b), "attempts": three, "kept": kept})


if __name__ == "__main__":
    run(main, Config())
