"""What an all-reduce costs in seconds: alpha and beta by ping-pong, ring and doubling predicted and measured.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_05_cost.py
Written by:  notebooks/05_ring_all_reduce.ipynb
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isclose, log2

import numpy as np
import torch
import torch.distributed as dist
from lab_05_other_ways import recursive_doubling
from lab_05_ring import ring_all_reduce, send_right

from shared.comm.record import record
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0, progress
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    messages: tuple[int, ...] = tuple(2**e for e in (6, 10, 14, 18, 20, 22))  # bytes, for the fits
    sizes: tuple[int, ...] = tuple(2**e for e in (12, 14, 16, 18, 20, 22, 24))  # bytes, of all-reduces
    trips: int = 20  # there and back, in one measurement
    repeats: int = 7


@dataclass(frozen=True)
class Link:
    """Seconds of a message: alpha to get it going, beta for each byte."""

    alpha: float
    beta: float

    def seconds(self, messages: int, size: float) -> float:
        return messages * self.alpha + size * self.beta


@dataclass(frozen=True)
class Plan:
    """What each rank does in an all-reduce, one after the other."""

    messages: int
    sent: float  # bytes
    added: float  # bytes of the sum


def ring_plan(size: int, n: int) -> Plan:
    return Plan(2 * (n - 1), 2 * (n - 1) / n * size, (n - 1) / n * size)


def doubling_plan(size: int, n: int) -> Plan:
    rounds = int(log2(n))
    return Plan(rounds, rounds * size, rounds * size)


def fit(sizes: list[int], times: list[float]) -> Link:
    """Fit t = alpha + size * beta, by least squares of relative errors. Sizes in bytes, times in seconds."""
    terms = np.array([[1, size] for size in sizes])
    weights = 1 / np.array(times)
    (alpha, beta), *_ = np.linalg.lstsq(terms * weights[:, None], np.ones(len(sizes)), rcond=None)
    return Link(float(alpha), float(beta))


def wait_for_device(group: Group) -> None:
    if group.device.type == "cuda":
        torch.cuda.synchronize()


def seconds(function: Callable, group: Group) -> float:
    """Seconds of one call, from a common start to the end of the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    function()
    wait_for_device(group)
    took = torch.tensor(time.perf_counter() - start, device=group.device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def ping_pong(x: torch.Tensor, trips: int) -> None:
    """x goes from rank 0 to rank 1 and back. One message is under way at any time; other ranks do nothing."""
    for _ in range(trips):
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)
            dist.send(x, 0)


def all_at_once(x: torch.Tensor, incoming: torch.Tensor, trips: int) -> None:
    """Every rank sends x to the right while it receives from the left: a step of the ring, without adding."""
    for _ in range(2 * trips):
        send_right(x, incoming, None)


def measure_links(cfg: Config, group: Group) -> dict[str, Link]:
    """Alpha and beta of one message on an idle machine, and of one when all ranks send."""
    found: dict[str, list[float]] = {"ping-pong": [], "all at once": []}
    for size in cfg.messages:
        x, incoming = torch.ones(2, size // 4, device=group.device)
        trips = max(1, min(cfg.trips, 2**22 // size))
        for way, function in (
            ("ping-pong", lambda x=x, trips=trips: ping_pong(x, trips)),
            ("all at once", lambda x=x, y=incoming, trips=trips: all_at_once(x, y, trips)),
        ):
            best = min(seconds(function, group) for _ in range(cfg.repeats))
            found[way].append(best / (2 * trips))
    return {way: fit(list(cfg.messages), times) for way, times in found.items()}


def seconds_to_add_a_byte(cfg: Config, group: Group) -> float:
    """Gamma: what ``target += incoming`` costs while every rank adds."""
    x, y = torch.ones(2, 2**18, device=group.device)
    return min(seconds(lambda: x.add_(y), group) for _ in range(cfg.repeats)) / x.nbytes


def measure_all_reduces(cfg: Config, group: Group) -> dict[str, dict[int, list[float]]]:
    """{way: {bytes: seconds of each repeat}}, and each call's messages and bytes are those of its plan."""
    n = group.world_size
    ways = {"ring": (ring_all_reduce, ring_plan)}
    if n & (n - 1) == 0:
        ways["doubling"] = (recursive_doubling, doubling_plan)
    taken = {way: {size: [] for size in cfg.sizes} for way in [*ways, "gloo"]}
    for size in progress(cfg.sizes, "sizes"):
        x = torch.ones(size // 4, device=group.device)
        for _ in range(cfg.repeats):
            for way, (all_reduce, plan_of) in ways.items():
                x.fill_(1.0)
                with record() as log:
                    taken[way][size].append(seconds(lambda f=all_reduce, x=x: f(x), group))
                assert x[0] == n, f"{way}: the sum of {n} ones is {x[0]:g}"
                plan = plan_of(size, n)
                assert log.count("send") == plan.messages, f"{way}: {log.count('send')} messages, not {plan}"
                off = abs(log.bytes("send") - plan.sent)
                assert off < 4 * plan.messages, f"{way}: {log.bytes('send'):,} bytes, not {plan}"
            x.fill_(1.0)
            taken["gloo"][size].append(seconds(lambda x=x: dist.all_reduce(x), group))
    return taken


def check_the_fit() -> None:
    """The fit finds an alpha and a beta that are known."""
    known = Link(3e-5, 2e-9)
    sizes = [64, 4096, 2**20]
    found = fit(sizes, [known.seconds(1, size) for size in sizes])
    same = isclose(found.alpha, known.alpha, rel_tol=1e-6) and isclose(found.beta, known.beta, rel_tol=1e-6)
    assert same, f"fitted {found}, not {known}"


def main(cfg: Config) -> None:
    check_the_fit()
    with process_group(timeout_s=60, smallest=2) as group:
        n = group.world_size
        links = measure_links(cfg, group)
        gamma = seconds_to_add_a_byte(cfg, group)
        taken = measure_all_reduces(cfg, group)
        for way, link in links.items():
            print_on_rank_0(
                f"{way:12} alpha {link.alpha * 1e6:6.0f} us, 1 / beta {1e-9 / link.beta:.2f} GB/s"
            )
        print_on_rank_0(f"{'adding':12} 1 / gamma {1e-9 / gamma:.2f} GB/s")
        predicted = {}
        for name, plan_of in (("ring", ring_plan), ("doubling", doubling_plan)):
            plans = [plan_of(size, n) for size in cfg.sizes]
            predicted[name] = {
                way: [link.seconds(p.messages, p.sent) + p.added * gamma for p in plans]
                for way, link in links.items()
            }
        record_results(
            "lab_05_cost",
            {
                "sizes": cfg.sizes,
                "links": {way: asdict(link) for way, link in links.items()},
                "gamma": gamma,
                "times": {way: [min(t) for t in rows.values()] for way, rows in taken.items()},
                "medians": {
                    way: [statistics.median(t) for t in rows.values()] for way, rows in taken.items()
                },
                "predicted": predicted,
            },
        )


if __name__ == "__main__":
    run(main, Config())
