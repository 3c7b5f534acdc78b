"""What an all-reduce costs in seconds: our ring against gloo's, and the alpha-beta model of both.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_05_cost.py
Written by:  notebooks/05_ring_all_reduce.ipynb
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0, progress
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    exponents: tuple[int, ...] = (12, 14, 16, 18, 20, 21, 22, 24)  # sizes of 2 ** e bytes
    unfitted: int = 21  # left out of the fit, then predicted
    pieces: int = 4  # parts of a chunk that are under way at the same time
    pipelined_from: int = 20  # exponent from which cutting chunks into pieces pays
    repeats: int = 9


def pipelined_ring(x: torch.Tensor, pieces: int) -> torch.Tensor:
    """The ring of lab_05_ring over all ranks, each chunk cut into ``pieces``.

    While one piece is added up here, the next arrives: the wire and the processor work at once.
    The number of bytes stays the same, the number of messages grows ``pieces``-fold.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = [chunk.tensor_split(pieces) for chunk in x.tensor_split(n)]
    buffers = [torch.empty_like(piece) for piece in chunks[0]]  # the first chunk is the largest
    for step in range(2 * (n - 1)):
        outgoing, targets = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        adding = step < n - 1  # the first half is reduce-scatter, the second all-gather
        incoming = [b[: len(t)] for b, t in zip(buffers, targets, strict=True)] if adding else targets
        receives = [dist.P2POp(dist.irecv, piece, left) for piece in incoming]
        sends = [dist.P2POp(dist.isend, piece, right) for piece in outgoing]
        works = dist.batch_isend_irecv(receives + sends)
        if len(works) == 1:  # nccl answers with one handle for the whole batch
            works *= 2 * pieces
        for piece, target, work in zip(incoming, targets, works, strict=False):
            work.wait()
            if adding:
                target += piece
        for work in works[pieces:]:
            work.wait()
    return x


def seconds(function: Callable, group: Group) -> float:
    """Seconds of one call, from a common start to the end of the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    function()
    if group.device.type == "cuda":
        torch.cuda.synchronize()
    took = torch.tensor(time.perf_counter() - start, device=group.device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item()


def fit(sizes: list[int], times: list[float], n: int) -> tuple[float, float]:
    """Fit t = 2 (n - 1) alpha + 2 (n - 1) / n * size * beta by least squares of relative errors.

    Returns alpha in seconds per step and beta in seconds per byte.
    """
    terms = np.array([[2 * (n - 1), 2 * (n - 1) / n * size] for size in sizes])
    weights = 1 / np.array(times)
    (alpha, beta), *_ = np.linalg.lstsq(terms * weights[:, None], np.ones(len(sizes)), rcond=None)
    return alpha, beta


def predict(size: int, alpha: float, beta: float, n: int) -> float:
    """Seconds that the model expects for ``size`` bytes over n ranks."""
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * size * beta


def main(cfg: Config) -> None:
    with process_group(timeout_s=30, smallest=2) as group:
        n = group.world_size
        x = torch.randn(9_999, dtype=torch.float64, device=group.device)
        expected = x.clone()
        dist.all_reduce(expected)
        assert_equal("pipelined ring", pipelined_ring(x, cfg.pieces), expected, 1e-12)

        times: dict[str, list[float]] = {"ring": [], "gloo": []}  # of the fastest call
        medians: dict[str, list[float]] = {"ring": [], "gloo": []}
        for exponent in progress(cfg.exponents, "sizes"):
            x = torch.ones(2**exponent // 4, device=group.device)
            pieces = cfg.pieces if exponent >= cfg.pipelined_from else 1
            ways = {
                "ring": lambda x=x, p=pieces: pipelined_ring(x, p),
                "gloo": lambda x=x: dist.all_reduce(x),
            }
            taken = {way: [] for way in ways}
            for _ in range(cfg.repeats):
                for way, function in ways.items():
                    x.fill_(1.0)
                    taken[way].append(seconds(function, group))
            for way in ways:
                times[way].append(min(taken[way]))
                medians[way].append(float(np.median(taken[way])))

        sizes = [2**exponent for exponent in cfg.exponents]
        fitted = [i for i, exponent in enumerate(cfg.exponents) if exponent != cfg.unfitted]
        model = {way: fit([sizes[i] for i in fitted], [times[way][i] for i in fitted], n) for way in times}
        for way, (alpha, beta) in model.items():
            size, took = 2**cfg.unfitted, times[way][cfg.exponents.index(cfg.unfitted)]
            expected_s = predict(size, alpha, beta, n)
            print_on_rank_0(
                f"{way}: alpha {alpha * 1e6:.0f} us, 1/beta {1e-9 / beta:.2f} GB/s; "
                f"{size >> 20} MiB predicted {expected_s * 1e3:.2f} ms, measured {took * 1e3:.2f} ms"
            )
        record_results(
            "lab_05_cost",
            {"sizes": sizes, "times": times, "medians": medians, "model": model, "unfitted": 2**cfg.unfitted},
        )


if __name__ == "__main__":
    run(main, Config())
