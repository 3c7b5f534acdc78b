"""What a slow and a long wire cost: alpha and beta fitted on 2 machines, 3 and 4 predicted, and DDP's step.

The ranks are forks of this process, each on a host of its own, so that torch is imported once.

Run it:      python labs/lesson_27/proof_wire.py
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results

from lesson_27.hosts import BUCKET, network, run_with_hosts, sent, sent_again
from lesson_27.needs import cables
from lesson_27.ranks import answers

KIB = 2**10
MIB = 2**20


@dataclass(frozen=True)
class Config:
    wires: tuple[tuple[int, int], ...] = ((100, 0), (100, 10))  # Mbit/s, ms from host to host
    sizes: tuple[int, ...] = (4 * KIB, 64 * KIB, 512 * KIB, 4 * MIB)  # bytes
    hosts: tuple[int, ...] = (2, 3, 4)
    repeats: int = 2
    layers: int = 4
    width: int = 512  # a layer has width x width numbers of float32: 1 MiB
    compute_s: tuple[float, ...] = (0.05, 0.15)  # of a layer's backward pass
    steps: int = 3
    own_messages: int = 32 * KIB  # bytes that gloo may send for itself: numbers of messages, a barrier
    clock: float = 0.05  # how much too fast the bucket may be
    patience_s: float = 240.0


# --- What it costs: the model ---


@dataclass(frozen=True)
class Wire:
    """Seconds of a message: alpha to get it going, beta for each byte."""

    alpha: float
    beta: float

    def ring(self, size: float, n: int) -> float:
        """Seconds of a ring all-reduce of ``size`` bytes over n hosts. Taught in lesson 05."""
        return 2 * (n - 1) * self.alpha + ring_bytes(size, n) * self.beta


def ring_bytes(size: float, n: int) -> float:
    """What each of n ranks sends in a ring all-reduce of ``size`` bytes."""
    return 2 * (n - 1) / n * size


def fit(sizes: Sequence[int], times: Sequence[float]) -> Wire:
    """The wire between 2 hosts, from seconds of all-reduces; least squares of relative errors."""
    terms = np.array([[2, ring_bytes(size, 2)] for size in sizes])
    weights = 1 / np.array(times)
    (alpha, beta), *_ = np.linalg.lstsq(terms * weights[:, None], np.ones(len(sizes)), rcond=None)
    if alpha < 0:  # too small to be seen among these sizes
        alpha = 0.0
        (beta,), *_ = np.linalg.lstsq((terms * weights[:, None])[:, 1:], np.ones(len(sizes)), rcond=None)
    return Wire(float(alpha), float(beta))


# --- What it costs: measured ---


def all_reduces(group: dist.ProcessGroup, sizes: Sequence[int], repeats: int) -> dict:
    """{"seconds": best of each size, "sent", "again": bytes of one all-reduce of each}, on this rank."""
    n = dist.get_world_size(group)
    measured: dict[str, list] = {"seconds": [], "sent": [], "again": []}
    for size in sizes:
        x = torch.ones(size // 4)
        dist.barrier(group)
        before, again = sent(), sent_again()
        dist.all_reduce(x, group=group)
        dist.barrier(group)
        measured["sent"].append(sent() - before)
        measured["again"].append(sent_again() - again)
        if x.min() != n or x.max() != n:
            raise CourseError(f"the sum of {n} ones is {x.min()} to {x.max()}")
        seconds = []
        for _ in range(repeats):
            dist.all_reduce(torch.ones(n * BUCKET // 4), group=group)  # nobody has rested now
            start = time.perf_counter()
            dist.all_reduce(x, group=group)
            seconds.append(time.perf_counter() - start)
        measured["seconds"].append(min(seconds))
    return measured


class ComputesLong(torch.autograd.Function):
    """x, whose backward pass takes as long as if a GPU computed: the processor is free meanwhile."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Layer(nn.Module):
    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ComputesLong.apply(self.linear(x), self.seconds)


def ddp_step(group: dist.ProcessGroup, compute_s: float, bucket_mib: int, cfg: Config) -> dict:
    """{"seconds": best, "sent", "again": bytes} of a forward and a backward pass, on this rank."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(*[Layer(cfg.width, compute_s) for _ in range(cfg.layers)])
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_mib)
    x = torch.randn(8, cfg.width)
    seconds = []
    for _ in range(1 + cfg.steps):  # after the first one, DDP divides its buckets anew
        dist.barrier(group)
        before, again = sent(), sent_again()
        start = time.perf_counter()
        ddp(x).square().mean().backward()
        seconds.append(time.perf_counter() - start)
    dist.barrier(group)
    return {"seconds": min(seconds[1:]), "sent": sent() - before, "again": sent_again() - again}


def measure(with_ddp: bool, cfg: Config) -> dict:
    """What a rank does on one kind of wire: all-reduces on more and more hosts, then DDP on the first two."""
    measured: dict[str, Any] = {"overlapped": [], "at the end": []}
    for n in cfg.hosts:
        group = dist.new_group(list(range(n)))
        if dist.get_rank() < n:
            measured[f"all-reduce {n}"] = all_reduces(group, cfg.sizes, cfg.repeats)
        dist.barrier()
    pair = dist.new_group([0, 1])
    if with_ddp and dist.get_rank() in (0, 1):
        for compute_s in cfg.compute_s:
            measured["overlapped"].append(ddp_step(pair, compute_s, 1, cfg))  # a bucket for each layer
            measured["at the end"].append(ddp_step(pair, compute_s, 2 * cfg.layers, cfg))  # one bucket
    dist.barrier()
    return measured


# --- The claims ---


def assert_bytes(what: str, measured: float, formula: float, again: int, cfg: Config) -> None:
    """The card has sent what the formula says, a few messages of gloo's own, and what TCP had to repeat."""
    if not formula <= measured <= formula + cfg.own_messages + again:
        raise CourseError(f"{what}: {measured:,.0f} bytes went out, the formula says {formula:,.0f}")


def assert_not_too_fast(what: str, seconds: float, size: float, wire: tuple[int, int], cfg: Config) -> None:
    """Nothing is faster than the wire. Slower it may be, on a machine that has other things to do."""
    mbit, delay_ms = wire
    shortest = max(delay_ms / 1e3, (size - BUCKET) * 8 / (mbit * 1e6))
    if seconds < shortest * (1 - cfg.clock):
        raise CourseError(f"{what}: {seconds:.3f} s, but the wire alone needs {shortest:.3f} s")


def check(told: list[dict], wire: tuple[int, int], cfg: Config) -> None:
    for n in cfg.hosts:
        for rank in range(n):
            result = told[rank][f"all-reduce {n}"]
            measured = (result["seconds"], result["sent"], result["again"])
            for size, seconds, out, again in zip(cfg.sizes, *measured, strict=True):
                what = f"all-reduce of {size:,} bytes on {n} hosts, rank {rank}"
                assert_bytes(what, out, ring_bytes(size, n), again, cfg)
                assert_not_too_fast(what, seconds, ring_bytes(size, n), wire, cfg)
    gradients = cfg.layers * cfg.width**2 * 4
    for rank in (0, 1):
        for way in ("overlapped", "at the end"):
            what = f"DDP's step, {way}, rank {rank}"
            for result in told[rank][way]:
                assert_bytes(what, result["sent"], ring_bytes(gradients, 2), result["again"], cfg)
                assert_not_too_fast(what, result["seconds"], ring_bytes(gradients, 2), wire, cfg)


def summary(told: list[dict], name: str, cfg: Config) -> dict:
    """Measured and predicted seconds; a collective takes as long as on its slowest rank."""
    measured = {}
    for n in cfg.hosts:
        of_ranks = [told[rank][f"all-reduce {n}"]["seconds"] for rank in range(n)]
        measured[n] = [max(times) for times in zip(*of_ranks, strict=True)]
    wire = fit(cfg.sizes, measured[2])
    return {
        "name": name,
        "wire": asdict(wire),
        "measured": measured,
        "predicted": {n: [wire.ring(size, n) for size in cfg.sizes] for n in cfg.hosts},
        "steps": [steps_with(told, number, wire, cfg) for number in range(len(told[0]["overlapped"]))],
    }


def steps_with(told: list[dict], number: int, wire: Wire, cfg: Config) -> dict:
    """DDP's steps for one of ``compute_s``: {way: (measured, predicted) seconds}."""
    layer = cfg.compute_s[number]
    bucket = wire.ring(cfg.width**2 * 4, 2)
    predicted = {
        # the first layer computes, the last bucket travels; in between, the slower of the two decides
        "overlapped": layer + bucket + (cfg.layers - 1) * max(layer, bucket),
        "at the end": cfg.layers * layer + wire.ring(cfg.layers * cfg.width**2 * 4, 2),
    }
    measured = {way: max(told[rank][way][number]["seconds"] for rank in (0, 1)) for way in predicted}
    return {"computes": cfg.layers * layer, **{way: (measured[way], predicted[way]) for way in predicted}}


def main(cfg: Config) -> None:
    assert_fit()
    import_module("torch._dynamo")  # DDP would import it in each fork
    rows = []
    for number, wire in enumerate(cfg.wires):
        mbit, delay_ms = wire
        name = f"{mbit} Mbit/s" + (f", {delay_ms} ms" if delay_ms else "")
        with network(max(cfg.hosts), mbit, delay_s=delay_ms / 1e3) as net:
            told = answers(net.hosts, measure, number == 0, cfg, patience_s=cfg.patience_s)
        check(told, wire, cfg)
        rows.append({**summary(told, name, cfg), "sent": list(told)})
        print(f"{name}: bytes at each network card as computed, and nothing faster than the wire")
    record_results("27_wire", {"rows": rows, "sizes": cfg.sizes, "hosts": cfg.hosts})


def assert_fit() -> None:
    """The fit finds an alpha and a beta that are known."""
    known = Wire(1e-3, 8e-8)
    sizes = [KIB, MIB, 4 * MIB]
    fitted = fit(sizes, [known.ring(size, 2) for size in sizes])
    if not np.allclose([fitted.alpha, fitted.beta], [known.alpha, known.beta]):
        raise CourseError(f"the fit finds {fitted} for {known}")


if __name__ == "__main__":
    run_with_hosts("27_wire", main, Config(), need=cables)
