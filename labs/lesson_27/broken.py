"""What goes wrong between machines, and the cure of each: names, network cards, cables, agents.

Run it:  python labs/lesson_27/broken.py
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import torch
import torch.distributed as dist

from shared.runtime.children import FORK
from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import die_with_launcher

from lesson_27.hosts import Host, Network, network, run_with_hosts
from lesson_27.needs import cables
from lesson_27.ranks import PORT, ranks_on

AGENTS_PORT = 29400  # of their store; that of the ranks is elsewhere
START_S = 4  # time-out of a start that is to fail, though each rank has come
CABLE_S = 6  # of ranks whose cable is out: they must have started within it
PORTS = (50000, 50999)  # of ports that a firewall lets through
STEPS_AFTER = 20  # all-reduces that are to succeed when the cable is back


@dataclass(frozen=True)
class Config:
    down_s: float = 2.0  # the cable is out for so long
    patience_s: float = 240.0


@dataclass(frozen=True)
class Row:
    """One failure, why it comes, its cure, and what a rank or an agent has said."""

    did: str
    why: str
    cure: str
    message: str


# --- What ranks do ---


def sum_once() -> float:
    x = torch.ones(1000)
    dist.all_reduce(x)
    return x[0].item()


def sum_until(done: Synchronized, enough: Synchronized) -> int:
    """All-reduce until ``enough`` says so; rank 0 counts in ``done``. All ranks end after the same call."""
    while True:
        stop = torch.tensor([float(enough.value), 1.0])
        dist.all_reduce(stop)
        if stop[1] != dist.get_world_size():
            raise CourseError(f"the sum of ones is {stop[1]}")
        if dist.get_rank() == 0:
            done.value += 1
        if stop[0] > 0:
            return done.value


def broken(see: str, told: list) -> str:
    """The words of a rank that has seen the error; each rank must have failed, and one with these words."""
    if not all(isinstance(answer, str) and answer.startswith("ERROR") for answer in told):
        raise CourseError(f"all ranks were to fail, but they say {told}")
    for answer in told:
        match = re.search(see, answer)
        if match:
            return match[0]
    raise CourseError(f"no rank says {see!r}: {told}")


def cured(told: list) -> None:
    if told != [2.0, 2.0]:
        raise CourseError(f"cured, the ranks were to say that the sum is 2, but they say {told}")


@dataclass(frozen=True)
class Trial:
    """Two ranks that fail with the options ``wrong``, saying ``see``, and do not with ``right``."""

    hosts: list[Host]
    see: str
    wrong: dict
    right: dict
    mend: Callable[[], None] | None = None  # what else the cure needs


def try_all(trials: list[Trial], cfg: Config) -> list[str]:
    """What was said; all fail side by side, because that takes as long as their time-outs."""
    with ExitStack() as stack:
        failing = [
            stack.enter_context(ranks_on(trial.hosts, sum_once, timeout_s=START_S, **trial.wrong))
            for trial in trials
        ]
        messages = []
        for trial, ranks in zip(trials, failing, strict=True):
            messages.append(broken(trial.see, ranks.told(cfg.patience_s)))
    for trial in trials:
        if trial.mend:
            trial.mend()
        with ranks_on(trial.hosts, sum_once, **trial.right) as ranks:
            cured(ranks.told(cfg.patience_s))
    return messages


# --- Names and cards ---


def own_name_is_loopback(host: Host, others: list[Host], folder: Path) -> None:
    """As Debian's installer writes it: the machine's own name is 127.0.1.1."""
    file = folder / f"hosts of {host.name}"
    known = [f"{other.address} {other.name}" for other in others if other is not host]
    lines = ["127.0.0.1 localhost", f"127.0.1.1 {host.name}", *known, ""]
    file.write_text("\n".join(lines), encoding="utf-8")
    host.ask("mount", "--bind", file, "/etc/hosts")


def starts(net: Network, guarded: Network, cfg: Config, folder: Path) -> list[Row]:
    """Four starts that fail, and their cures, each on a pair of hosts.

    Between the ``guarded`` ones is a firewall, as most clouds have one; with the cure it stays as it is.
    """
    first, second, third = net.hosts[:2], net.hosts[2:], guarded.hosts
    for host in first:
        own_name_is_loopback(host, net.hosts, folder)
    on_eth0 = {"card": "eth0"}
    head = second[0].name
    trials = [
        Trial(first, "Gloo connectFullMesh failed", {"card": ""}, on_eth0),
        Trial(
            second,
            r"timed out after \d+ms while trying to connect to \(node-z, 29500\)",
            {"at": "node-z"},
            {"at": head},
        ),
        Trial(third, "Connect timeout", {}, {}, partial(choose_ports, third)),
    ]
    loopback, unknown, closed = try_all(trials, cfg)
    (no_card,) = try_all([Trial(second, "Unable to find address for: eth1", {"card": "eth1"}, on_eth0)], cfg)
    for host in first:
        host.ask("umount", "/etc/hosts")
    low, high = PORTS
    return [
        Row(
            "the own name stands for 127.0.1.1 in /etc/hosts, and nothing names the card",
            "gloo looks up the own name and tells that address to the others: each then connects to itself",
            "`GLOO_SOCKET_IFNAME=eth0`",
            loopback,
        ),
        Row(
            "`GLOO_SOCKET_IFNAME=eth1`",
            "there is no such card on this machine; `ip -brief address` lists them",
            "`GLOO_SOCKET_IFNAME=eth0`",
            no_card,
        ),
        Row(
            "`node-z` as the machine to meet at",
            "the name does not resolve; `getent hosts node-z` says so at once",
            "a name that each machine resolves, or an address",
            unknown,
        ),
        Row(
            f"a firewall with two holes: port {PORT}, and {low} to {high}",
            "all ranks find the store. Then each listens at a port that its kernel has chosen, by default "
            "from 32768 to 60999",
            f'`sysctl -w net.ipv4.ip_local_port_range="{low} {high}"` on each machine; or no firewall '
            "between them",
            closed,
        ),
    ]


def choose_ports(hosts: list[Host]) -> None:
    """The kernel of each host chooses ports that the firewall lets through."""
    for host in hosts:
        host.ask("sh", "-c", "echo {} {} > /proc/sys/net/ipv4/ip_local_port_range".format(*PORTS))


# --- Cables ---


def cable_is_out_for_a_while(net: Network, cfg: Config) -> None:
    """Nothing arrives while it is out; then all goes on as if nothing had happened."""
    done, enough = FORK.Value("i", 0), FORK.Value("i", 0)
    with ranks_on(net.hosts, sum_until, done, enough) as ranks:
        wait_for(lambda: done.value >= STEPS_AFTER, "the first all-reduces", cfg)
        net.set_link(1, "down")
        at_first = done.value
        time.sleep(cfg.down_s)
        at_last = done.value
        net.set_link(1, "up")
        if at_last > at_first + 2:  # one that was under way, and one whose messages had arrived
            raise CourseError(f"{at_last - at_first} all-reduces were done without a cable")
        wait_for(lambda: done.value >= at_last + STEPS_AFTER, "all-reduces with the cable back", cfg)
        enough.value = 1
        told = ranks.told(cfg.patience_s)
    if not all(isinstance(answer, int) for answer in told):
        raise CourseError(f"the ranks were to go on, but they say {told}")


def cable_is_out_for_good(net: Network, cfg: Config) -> Row:
    done, enough = FORK.Value("i", 0), FORK.Value("i", 0)
    see = f"Timed out waiting {CABLE_S}000ms"
    with ranks_on(net.hosts, sum_until, done, enough, timeout_s=CABLE_S) as ranks:
        wait_for(lambda: done.value >= STEPS_AFTER, "the first all-reduces", cfg)
        net.set_link(1, "down")
        message = broken(see, ranks.told(cfg.patience_s))
    net.set_link(1, "up")
    with ranks_on(net.hosts, sum_once) as ranks:
        cured(ranks.told(cfg.patience_s))
    return Row(
        "nothing: a cable or a switch broke",
        "nobody tells a rank that the other end is gone; it waits for its time-out",
        "a new start from the last checkpoint (lesson 13), here with the cable back",
        message,
    )


def wait_for(condition: Callable[[], bool], what: str, cfg: Config) -> None:
    end = time.monotonic() + cfg.patience_s
    while not condition():
        if time.monotonic() > end:
            raise CourseError(f"waited {cfg.patience_s:.0f} s for {what}")
        time.sleep(0.01)


# --- Agents ---


class Agent:
    """torchrun on one host, whose ranks only sleep: all that matters here is between the agents."""

    def __init__(self, host: Host, head: str, folder: Path, hosts: int, conf: str) -> None:
        self.errors = folder / f"agent of {host.name}.err"
        self.started = folder / f"rank of {host.name}"
        meet = [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={head}:{AGENTS_PORT}",
            "--rdzv-id=any",
            f"--rdzv-conf={conf}",
        ]
        launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={hosts}", "--nproc-per-node=1"]
        logs = [f"--log-dir={folder}"]
        rank = ["--no-python", "sh", "-c", 'touch "$0"; exec sleep 1000', self.started]
        with self.errors.open("w") as err:
            self.process = subprocess.Popen(
                host.inside(*launcher, *meet, *logs, f"--local-addr={host.address}", *rank),
                stdout=subprocess.DEVNULL,
                stderr=err,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
                preexec_fn=die_with_launcher,
            )

    def end(self, see: str, patience_s: float) -> str:
        """Wait until it fails; its words that match ``see``."""
        code = self.process.wait(timeout=patience_s)
        errors = self.errors.read_text()
        match = re.search(see, errors)
        if code == 0 or not match:
            raise CourseError(f"{errors[-3000:]}\nthe agent: exit code {code}; it was to say {see!r}")
        return match[0]


def nobody_comes(agent: Agent, cfg: Config) -> Row:
    see = "RendezvousTimeoutError"
    return Row(
        "torchrun on one machine of two",
        "it waits `join_timeout` for the others, 600 s by default",
        "`--rdzv-conf=join_timeout=1800` where machines start late",
        agent.end(see, cfg.patience_s),
    )


def first_one_is_missing(agent: Agent, cfg: Config) -> Row:
    see = "RendezvousConnectionError"
    return Row(
        "torchrun on all machines but that of `--rdzv-endpoint`",
        "it looks for the store for `read_timeout`, 60 s by default; a wrong port looks the same",
        "start that machine first, or `--rdzv-conf=read_timeout=600`",
        agent.end(see, cfg.patience_s),
    )


def agents_together(net: Network, folder: Path) -> list[Agent]:
    conf = "keep_alive_interval=1,keep_alive_max_attempt=30"
    return [Agent(host, net.hosts[0].name, folder, hosts=2, conf=conf) for host in net.hosts]


def store_is_lost(agents: list[Agent], net: Network, cfg: Config) -> Row:
    """The machine whose agent holds the store is switched off: the other agent cannot go on."""
    see = "RendezvousConnectionError"
    wait_for(lambda: all(agent.started.exists() for agent in agents), "ranks on both hosts", cfg)
    net.hosts[0].switch_off()
    message = agents[1].end(see, cfg.patience_s)
    return Row(
        "the machine of `--rdzv-endpoint` is lost",
        "its agent holds the store that the agents meet in",
        "a new start of all; or a store on a machine of its own, and `is_host=0` in `--rdzv-conf`",
        message,
    )


def main(cfg: Config) -> None:
    rows = []
    open_ports = (range(PORT, PORT + 1), range(PORTS[0], PORTS[1] + 1))
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        net = stack.enter_context(network(4, 100))
        guarded = stack.enter_context(network(2, 100, open_ports=open_ports))
        folder = Path(name)
        pair, others = Network(net.hosts[:2], net.switch), Network(net.hosts[2:], net.switch)
        alone = Agent(net.hosts[2], net.hosts[2].name, folder, hosts=2, conf="join_timeout=5")
        early = Agent(net.hosts[3], net.hosts[0].name, folder, hosts=2, conf="read_timeout=5")
        rows += starts(net, guarded, cfg, folder)
        print("names, network cards, ports: each start fails, and works with its cure")
        cable_is_out_for_a_while(pair, cfg)
        print(f"cable out for {cfg.down_s:.0f} s: no all-reduce meanwhile, then all go on, without an error")
        of_agents = [nobody_comes(alone, cfg), first_one_is_missing(early, cfg)]
        together = agents_together(others, folder)  # they start while the next cable is out
        rows.append(cable_is_out_for_good(pair, cfg))
        print(f"cable out for good: after the time-out of {CABLE_S} s all ranks fail")
        rows += [*of_agents, store_is_lost(together, others, cfg)]
        print("agents: one that is alone gives up, and one whose store is lost cannot go on")
    record_results("lesson_27_broken", {"table": table(rows), "rows": [asdict(row) for row in rows]})


def table(rows: list[Row]) -> str:
    """In Markdown."""
    lines = ["| You see | You did | Why | Cure |", "|---|---|---|---|"]
    lines += [f"| `{row.message}` | {row.did} | {row.why} | {row.cure} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    run_with_hosts("lesson_27_broken", main, Config(), need=cables)
