"""What a slow wire costs: alpha and beta fitted on 2 machines, 3 and 4 predicted, and DDP's step with both.

The ranks are forks of this process, each on a host of its own, so that torch is imported once.

Run it:      python labs/lab_27_wire.py
Written by:  notebooks/27_many_machines.ipynb
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.lesson_27.hosts import BUCKET, network, run_with_hosts, sent, sent_again
from shared.lesson_27.ranks import answers
from shared.runtime.errors import CourseError
from shared.runtime.results import record_results

KIB = 2**10
MIB = 2**20


@dataclass(frozen=True)
class Config:
    rates: tuple[int, ...] = (100, 1000)  # Mbit/s
    sizes: tuple[int, ...] = (4 * KIB, 256 * KIB, MIB, 4 * MIB)  # bytes
    hosts: tuple[int, ...] = (2, 3, 4)
    repeats: int = 3
    layers: int = 4
    width: int = 512  # a layer has width x width numbers of float32: 1 MiB
    compute_s: float = 0.05  # of a layer's backward pass
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
    return Wire(float(alpha), float(beta))


# --- What it costs: measured ---


def all_reduces(group: dist.ProcessGroup, sizes: Sequence[int], repeats: int) -> dict:
    """{"seconds": best of each size, "sent", "again": bytes of one all-reduce of each}, on this rank."""
    n = dist.get_world_size(group)
    found: dict[str, list] = {"seconds": [], "sent": [], "again": []}
    for size in sizes:
        x = torch.ones(size // 4)
        dist.barrier(group)
        before, again = sent(), sent_again()
        dist.all_reduce(x, group=group)
        dist.barrier(group)
        found["sent"].append(sent() - before)
        found["again"].append(sent_again() - again)
        if x.min() != n or x.max() != n:
            raise CourseError(f"the sum of {n} ones is {x.min()} to {x.max()}")
        seconds = []
        for _ in range(repeats):
            dist.all_reduce(torch.ones(n * BUCKET // 4), group=group)  # nobody has rested now
            start = time.perf_counter()
            dist.all_reduce(x, group=group)
            seconds.append(time.perf_counter() - start)
        found["seconds"].append(min(seconds))
    return found


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
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.linear = nn.Linear(cfg.width, cfg.width, bias=False)
        self.seconds = cfg.compute_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ComputesLong.apply(self.linear(x), self.seconds)


def ddp_step(group: dist.ProcessGroup, cfg: Config, bucket_mib: int) -> dict:
    """{"seconds": best, "sent", "again": bytes} of a forward and a backward pass, on this rank."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(*[Layer(cfg) for _ in range(cfg.layers)])
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


def measure(cfg: Config) -> dict:
    """What a rank does on one kind of wire: all-reduces on more and more hosts, then DDP on the first two."""
    found: dict[str, dict] = {}
    for n in cfg.hosts:
        group = dist.new_group(list(range(n)))
        if dist.get_rank() < n:
            found[f"all-reduce {n}"] = all_reduces(group, cfg.sizes, cfg.repeats)
        dist.barrier()
    pair = dist.new_group([0, 1])
    if dist.get_rank() in (0, 1):
        found["overlapped"] = ddp_step(pair, cfg, bucket_mib=1)  # a bucket for each layer
        found["at the end"] = ddp_step(pair, cfg, bucket_mib=2 * cfg.layers)  # one bucket
    dist.barrier()
    return found


# --- The claims ---


def assert_bytes(what: str, measured: float, formula: float, again: int, cfg: Config) -> None:
    """The card has sent what the formula says, a few messages of gloo's own, and what TCP had to repeat."""
    if not formula <= measured <= formula + cfg.own_messages + again:
        raise CourseError(f"{what}: {measured:,.0f} bytes went out, the formula says {formula:,.0f}")


def assert_not_too_fast(what: str, seconds: float, size: float, mbit: int, cfg: Config) -> None:
    """Nothing is faster than the wire. Slower it may be, on a machine that has other things to do."""
    shortest = (size - BUCKET) * 8 / (mbit * 1e6)
    if seconds < shortest * (1 - cfg.clock):
        raise CourseError(f"{what}: {seconds:.3f} s, but the wire alone needs {shortest:.3f} s")


def check(told: list[dict], mbit: int, cfg: Config) -> None:
    for n in cfg.hosts:
        for rank in range(n):
            one = told[rank][f"all-reduce {n}"]
            measured = (one["seconds"], one["sent"], one["again"])
            for size, seconds, out, again in zip(cfg.sizes, *measured, strict=True):
                what = f"all-reduce of {size:,} bytes on {n} hosts, rank {rank}"
                assert_bytes(what, out, ring_bytes(size, n), again, cfg)
                assert_not_too_fast(what, seconds, ring_bytes(size, n), mbit, cfg)
    gradients = cfg.layers * cfg.width**2 * 4
    for rank in (0, 1):
        for way in ("overlapped", "at the end"):
            what = f"DDP's step, {way}, rank {rank}"
            one = told[rank][way]
            assert_bytes(what, one["sent"], ring_bytes(gradients, 2), one["again"], cfg)
            assert_not_too_fast(what, one["seconds"], ring_bytes(gradients, 2), mbit, cfg)


def summary(told: list[dict], mbit: int, cfg: Config) -> dict:
    """Measured and predicted seconds; a collective takes as long as on its slowest rank."""
    measured = {}
    for n in cfg.hosts:
        of_ranks = [told[rank][f"all-reduce {n}"]["seconds"] for rank in range(n)]
        measured[n] = [max(times) for times in zip(*of_ranks, strict=True)]
    wire = fit(cfg.sizes, measured[2])
    gradients = wire.ring(cfg.layers * cfg.width**2 * 4, 2)
    layer = cfg.compute_s
    backward = cfg.layers * layer
    return {
        "mbit": mbit,
        "wire": asdict(wire),
        "measured": measured,
        "predicted": {n: [wire.ring(size, n) for size in cfg.sizes] for n in cfg.hosts},
        "steps": {
            way: max(told[rank][way]["seconds"] for rank in (0, 1)) for way in ("overlapped", "at the end")
        },
        "predicted steps": {
            # the first layer computes, the last bucket travels; in between, the slower of the two decides
            "overlapped": layer
            + gradients / cfg.layers
            + (cfg.layers - 1) * max(layer, gradients / cfg.layers),
            "at the end": backward + gradients,
        },
    }


def main(cfg: Config) -> None:
    assert_fit()
    import_module("torch._dynamo")  # DDP would import it in each fork
    rows = []
    with network(max(cfg.hosts)) as net:
        for mbit in cfg.rates:
            net.set_rate(mbit)
            told = answers(net.hosts, measure, cfg, patience_s=cfg.patience_s)
            check(told, mbit, cfg)
            rows.append({**summary(told, mbit, cfg), "sent": list(told)})
            print(f"{mbit} Mbit/s: bytes at each network card as computed, and nothing faster than the wire")
    record_results("lab_27_wire", {"rows": rows, "sizes": cfg.sizes, "hosts": cfg.hosts})


def assert_fit() -> None:
    """The fit finds an alpha and a beta that are known."""
    known = Wire(1e-3, 8e-8)
    sizes = [KIB, MIB, 4 * MIB]
    found = fit(sizes, [known.ring(size, 2) for size in sizes])
    if not np.allclose([found.alpha, found.beta], [known.alpha, known.beta]):
        raise CourseError(f"the fit finds {found} for {known}")


if __name__ == "__main__":
    run_with_hosts("lab_27_wire", main, Config())
