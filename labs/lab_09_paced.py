"""How much of the communication is hidden: compute that sleeps and a wire of known speed, so no noise.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_09_paced.py
Written by:  notebooks/09_ddp_inside.ipynb
"""

import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from shared.comm.paced import GBIT, Sending, Wire, on_wire
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    layers: int = 16
    width: int = 128  # a layer's gradient has width x width x 4 bytes = 64 KiB
    alpha_s: float = 2e-3
    bytes_per_s: float = 0.1 * GBIT  # so slow that gloo's own time does not show
    sweep_compute_s: float = 5e-3  # by layer; less than its all-reduce takes
    repeats: int = 3


class Slow(torch.autograd.Function):
    """Passes (batch, width) on as it is. On the way back it takes a given time: the work of a layer."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


def backward(
    buckets: list[list[int]], overlap: bool, compute_s: float, cfg: Config, group: Group
) -> tuple[list[float], list[Sending], float]:
    """One backward pass with all-reduces, launched when a bucket is full, or all after backward.

    Returns when each layer's gradient was ready, last layer first, what was sent, and when all was done,
    in seconds since backward began.
    """
    shape = (cfg.width, cfg.width)
    weights = [torch.zeros(shape, requires_grad=True, device=group.device) for _ in range(cfg.layers)]
    x = torch.ones(1, cfg.width, device=group.device)
    for weight in weights:
        x = Slow.apply(x + x @ weight, compute_s)
    ready, works = [], []

    def launch(bucket: list[int]) -> None:
        flat = torch.cat([weights[layer].grad.flatten() for layer in bucket])
        works.append(dist.all_reduce(flat, async_op=True))

    def hook(layer: int) -> None:
        ready.append(time.perf_counter() - start)
        for bucket in buckets:
            if overlap and layer == bucket[-1]:
                launch(bucket)

    for layer, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(lambda _, layer=layer: hook(layer))
    dist.barrier()
    with on_wire(Wire(cfg.alpha_s, cfg.bytes_per_s)) as wire:
        start = time.perf_counter()
        x.sum().backward()
        for bucket in buckets:
            if not overlap:
                launch(bucket)
        for work in works:
            work.wait()
    sent = [Sending(s.bytes, s.launched - start, s.start - start, s.end - start) for s in wire.log]
    return ready, sent, time.perf_counter() - start


def predict(buckets: list[list[int]], compute_s: float, cfg: Config, ranks: int) -> float:
    """Seconds that the alpha-beta model expects: each bucket waits for its gradients and for the wire."""
    wire, done = Wire(cfg.alpha_s, cfg.bytes_per_s), 0.0
    for bucket in buckets:
        full = (cfg.layers - bucket[-1]) * compute_s  # layers are numbered forward
        done = max(done, full) + wire.seconds(len(bucket) * cfg.width**2 * 4, ranks)
    return done


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        n = group.world_size
        backwards = list(range(cfg.layers))[::-1]
        each, all_in_one = [[layer] for layer in backwards], [backwards]
        one_layer = Wire(cfg.alpha_s, cfg.bytes_per_s).seconds(cfg.width**2 * 4, n)
        ways = {"naive": (each, False), "flat": (all_in_one, False), "overlapped": (each, True)}
        timelines = {}
        for way, (buckets, overlap) in ways.items():
            ready, sent, done = backward(buckets, overlap, 1.25 * one_layer, cfg, group)
            first_launch = sum(moment <= sent[0].launched for moment in ready)
            busy = sum(s.end - s.start for s in sent)
            hidden = sum(max(0.0, min(s.end, ready[-1]) - s.start) for s in sent) / busy
            expected = (1 - 1 / cfg.layers, 1) if overlap else (0.0, cfg.layers)
            assert abs(hidden - expected[0]) < 1e-6 and first_launch == expected[1], (
                way,
                hidden,
                first_launch,
            )
            print_on_rank_0(
                f"{way:10}: {len(sent):2} all-reduces, the first after {first_launch:2} of {cfg.layers} "
                f"gradients; {hidden:.1%} of the wire's time is hidden"
            )
            timelines[way] = {"ready": ready, "sent": [asdict(s) for s in sent], "done": done}

        sweep = []
        for size in (1, 2, 4, 8, 16):
            buckets = [backwards[i : i + size] for i in range(0, cfg.layers, size)]
            predicted = predict(buckets, cfg.sweep_compute_s, cfg, n)
            took = [backward(buckets, True, cfg.sweep_compute_s, cfg, group)[2] for _ in range(cfg.repeats)]
            assert min(took) >= predicted, (size, took, predicted)  # sleeping never takes less
            sweep.append({"size": size, "predicted": predicted, "took": took})
        best = min(sweep, key=lambda row: row["predicted"])
        print_on_rank_0(f"by the model, buckets of {best['size']} layers are best: {best['predicted']:.4f} s")
        record_results(
            "lab_09_paced", {"timelines": timelines, "sweep": sweep, "layer_bytes": cfg.width**2 * 4}
        )


if __name__ == "__main__":
    run(main, Config())
