"""What a slow wire costs: an all-reduce on 2, 3 and 4 machines, and DDP's step on 2.

The ranks are forks of this process, each on a host of its own, so that torch is imported once.

Run it:      python labs/lesson_27/proof_wire.py
"""

import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results

from lesson_27.hosts import BUCKET, network, run_with_hosts, sent, sent_again
from lesson_27.ranks import answers

KIB = 2**10
MIB = 2**20


@dataclass(frozen=True)
class Config:
    mbit: int = 100  # Mbit/s of each network card
    size: int = 4 * MIB  # bytes
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


def ring_bytes(size: float, n: int) -> float:
    """What each of n ranks sends in a ring all-reduce of ``size`` bytes."""
    return 2 * (n - 1) / n * size


def wire_s(size: float, n: int, cfg: Config) -> float:
    """Seconds that such an all-reduce needs at the rate of the cards."""
    return ring_bytes(size, n) * 8 / (cfg.mbit * 1e6)


# --- What it costs: measured ---


def all_reduce(group: dist.ProcessGroup, cfg: Config) -> dict:
    """{"seconds": best, "sent", "again": bytes of one all-reduce}, on this rank."""
    n = dist.get_world_size(group)
    x = torch.ones(cfg.size // 4)
    dist.barrier(group)
    before, again = sent(), sent_again()
    dist.all_reduce(x, group=group)
    dist.barrier(group)
    out, repeated = sent() - before, sent_again() - again
    if x.min() != n or x.max() != n:
        raise CourseError(f"the sum of {n} ones is {x.min()} to {x.max()}")
    seconds = []
    for _ in range(cfg.repeats):
        dist.all_reduce(torch.ones(n * BUCKET // 4), group=group)  # nobody has rested now
        start = time.perf_counter()
        dist.all_reduce(x, group=group)
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "sent": out, "again": repeated}


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


def measure(cfg: Config) -> dict:
    """What a rank does: all-reduces on more and more hosts, then DDP on the first two."""
    measured: dict[str, Any] = {"overlapped": [], "at the end": []}
    for n in cfg.hosts:
        group = dist.new_group(list(range(n)))
        if dist.get_rank() < n:
            measured[f"all-reduce {n}"] = all_reduce(group, cfg)
        dist.barrier()
    pair = dist.new_group([0, 1])
    if dist.get_rank() in (0, 1):
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


def assert_not_too_fast(what: str, seconds: float, size: float, cfg: Config) -> None:
    """Nothing is faster than the wire. Slower it may be, on a machine that has other things to do."""
    shortest = (size - BUCKET) * 8 / (cfg.mbit * 1e6)
    if seconds < shortest * (1 - cfg.clock):
        raise CourseError(f"{what}: {seconds:.3f} s, but the wire alone needs {shortest:.3f} s")


def check(told: list[dict], cfg: Config) -> None:
    gradients = cfg.layers * cfg.width**2 * 4
    for rank, of_rank in enumerate(told):
        results = [
            (f"all-reduce on {n} hosts", of_rank[f"all-reduce {n}"], ring_bytes(cfg.size, n))
            for n in cfg.hosts
            if rank < n
        ]
        for way in ("overlapped", "at the end"):
            results += [(f"DDP's step, {way}", one, ring_bytes(gradients, 2)) for one in of_rank[way]]
        for what, result, formula in results:
            assert_bytes(f"{what}, rank {rank}", result["sent"], formula, result["again"], cfg)
            assert_not_too_fast(f"{what}, rank {rank}", result["seconds"], formula, cfg)


def summary(told: list[dict], cfg: Config) -> dict:
    """{what: measured and predicted seconds}; a collective takes as long as on its slowest rank."""
    hosts = {}
    for n in cfg.hosts:
        measured = max(told[rank][f"all-reduce {n}"]["seconds"] for rank in range(n))
        hosts[n] = (measured, wire_s(cfg.size, n, cfg))
    return {"hosts": hosts, "steps": [steps_with(told, number, cfg) for number in range(len(cfg.compute_s))]}


def steps_with(told: list[dict], number: int, cfg: Config) -> dict:
    """DDP's steps for one of ``compute_s``: {way: (measured, predicted) seconds}."""
    layer = cfg.compute_s[number]
    bucket = wire_s(cfg.width**2 * 4, 2, cfg)
    predicted = {
        # the first layer computes, the last bucket travels; in between, the slower of the two decides
        "overlapped": layer + bucket + (cfg.layers - 1) * max(layer, bucket),
        "at the end": cfg.layers * (layer + bucket),
    }
    measured = {way: max(told[rank][way][number]["seconds"] for rank in (0, 1)) for way in predicted}
    return {"computes": cfg.layers * layer, **{way: (measured[way], predicted[way]) for way in predicted}}


def main(cfg: Config) -> None:
    import_module("torch._dynamo")  # DDP would import it in each fork
    with network(max(cfg.hosts), cfg.mbit) as net:
        told = answers(net.hosts, measure, cfg, patience_s=cfg.patience_s)
    check(told, cfg)
    record_results("27_wire", summary(told, cfg))
    print(f"{cfg.mbit} Mbit/s: bytes at each network card as computed, and nothing faster than the wire")


if __name__ == "__main__":
    run_with_hosts("27_wire", main, Config())
