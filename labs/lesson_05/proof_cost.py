"""What an all-reduce costs in seconds: alpha and beta measured, three algorithms predicted and measured.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_05/proof_cost.py
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from math import isclose, log2

import numpy as np
import torch
import torch.distributed as dist

from shared.comm.record import record
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0, progress
from shared.runtime.results import record_results
from shared.runtime.run import run

from lab_05_ring import ring_all_reduce, send_right
from lesson_05.proof_other_ways import halving_and_doubling, recursive_doubling


@dataclass(frozen=True)
class Config:
    messages: tuple[int, ...] = tuple(2**e for e in (6, 10, 14, 18, 20, 22))  # bytes, for the fits
    sizes: tuple[int, ...] = tuple(2**e for e in (12, 14, 16, 18, 20, 22, 24))  # bytes, of all-reduces
    bytes_in_a_row: int = 2**23  # a measurement makes so many calls that they move about this much,
    calls: int = 40  # at most so many,
    repeats: int = 15  # and the quickest of so many measurements counts


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


def halving_plan(size: int, n: int) -> Plan:
    return Plan(2 * int(log2(n)), 2 * (n - 1) / n * size, (n - 1) / n * size)


def fit(sizes: list[int], times: list[float]) -> Link:
    """Fit t = alpha + size * beta, by least squares of relative errors. Sizes in bytes, times in seconds."""
    terms = np.array([[1, size] for size in sizes])
    weights = 1 / np.array(times)
    (alpha, beta), *_ = np.linalg.lstsq(terms * weights[:, None], np.ones(len(sizes)), rcond=None)
    return Link(float(alpha), float(beta))


def wait_for_device(group: Group) -> None:
    if group.device.type == "cuda":
        torch.cuda.synchronize()


def seconds(function: Callable, size: int, cfg: Config, group: Group) -> float:
    """Seconds of one call that moves ``size`` bytes: of calls in a row, up to the end of the slowest rank.

    The same for messages and for all-reduces, without a record, which would slow each call down.
    """
    calls = max(2, min(cfg.calls, cfg.bytes_in_a_row // size))
    best = float("inf")
    for _ in range(cfg.repeats):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        wait_for_device(group)
        took = torch.tensor((time.perf_counter() - start) / calls, device=group.device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        best = min(best, took.item())
    return best


def ping_pong(x: torch.Tensor) -> None:
    """x goes from rank 0 to rank 1 and back. One message is under way at any time; other ranks do nothing."""
    if dist.get_rank() == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(x, 0)
        dist.send(x, 0)


def measure_links(cfg: Config, group: Group) -> dict[str, Link]:
    """Alpha and beta of one message on an idle machine, and of one when all ranks send."""
    taken: dict[str, list[float]] = {"ping-pong": [], "all at once": []}
    for size in cfg.messages:
        x, incoming = torch.ones(2, size // 4, device=group.device)
        there_and_back = seconds(partial(ping_pong, x), size, cfg, group)
        taken["ping-pong"].append(there_and_back / 2)
        # A step of the ring, without adding.
        taken["all at once"].append(seconds(partial(send_right, x, incoming, None), size, cfg, group))
    return {way: fit(list(cfg.messages), times) for way, times in taken.items()}


def seconds_to_add_a_byte(cfg: Config, group: Group) -> float:
    """Gamma: what ``target += incoming`` costs while every rank adds."""
    x, y = torch.ones(2, 2**18, device=group.device)
    return seconds(partial(x.add_, y), x.nbytes, cfg, group) / x.nbytes


def plans_for(n: int) -> dict[str, tuple[Callable, Callable[[int, int], Plan]]]:
    """{way: (the all-reduce, its plan)} that n ranks can take."""
    ways: dict = {"ring": (ring_all_reduce, ring_plan)}
    if n & (n - 1) == 0:
        ways["recursive doubling"] = (recursive_doubling, doubling_plan)
        ways["halving and doubling"] = (halving_and_doubling, halving_plan)
    return ways


def check_plan(way: str, all_reduce: Callable, plan: Plan, x: torch.Tensor, n: int) -> None:
    """One call adds up, and its messages and bytes are those of its plan."""
    x.fill_(1.0)
    with record() as log:
        all_reduce(x)
    assert x[0] == n, f"{way}: the sum of {n} ones is {x[0]:g}"
    assert log.count("send") == plan.messages, f"{way}: {log.count('send')} messages, not {plan}"
    off = abs(log.bytes("send") - plan.sent)
    assert off < 4 * plan.messages, f"{way}: {log.bytes('send'):,} bytes, not {plan}"


def measure_all_reduces(cfg: Config, group: Group) -> dict[str, list[float]]:
    """{way: seconds of one call for each size}, and each way's messages and bytes are those of its plan."""
    n = group.world_size
    ways = plans_for(n)
    taken: dict[str, list[float]] = {way: [] for way in [*ways, "torch"]}
    for size in progress(cfg.sizes, "sizes"):
        x = torch.ones(size // 4, device=group.device)
        for way, (all_reduce, plan_of) in ways.items():
            check_plan(way, all_reduce, plan_of(size, n), x, n)
            x.zero_()  # calls in a row add up zeros
            taken[way].append(seconds(partial(all_reduce, x), size, cfg, group))
        taken["torch"].append(seconds(partial(dist.all_reduce, x), size, cfg, group))
    return taken


def check_the_fit() -> None:
    """The fit finds an alpha and a beta that are known."""
    known = Link(3e-5, 2e-9)
    sizes = [64, 4096, 2**20]
    fitted = fit(sizes, [known.seconds(1, size) for size in sizes])
    same = isclose(fitted.alpha, known.alpha, rel_tol=1e-6) and isclose(fitted.beta, known.beta, rel_tol=1e-6)
    assert same, f"fitted {fitted}, not {known}"


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
        for name, (_, plan_of) in plans_for(n).items():
            plans = [plan_of(size, n) for size in cfg.sizes]
            predicted[name] = {
                way: [link.seconds(p.messages, p.sent) + p.added * gamma for p in plans]
                for way, link in links.items()
            }
        record_results(
            "05_cost",
            {
                "sizes": cfg.sizes,
                "links": {way: asdict(link) for way, link in links.items()},
                "gamma": gamma,
                "times": taken,
                "predicted": predicted,
            },
        )


if __name__ == "__main__":
    run(main, Config())
