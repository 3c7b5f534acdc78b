"""How much of the communication is hidden: compute that sleeps and a wire of known speed, so no noise.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_09/proof_paced.py
"""

import time
from dataclasses import asdict, dataclass
from functools import partial

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


@dataclass(frozen=True)
class Timeline:
    """One backward pass, in seconds since it began.

    Attributes:
        ready: when each layer's gradient was ready, last layer first.
        sent: the all-reduces.
        first_wait: when this rank began to wait for the first of them.
        done: when all was done.
    """

    ready: list[float]
    sent: list[Sending]
    first_wait: float
    done: float

    def gradients_before_launch(self) -> int:
        """How many gradients were ready when the first all-reduce was launched."""
        return sum(moment <= self.sent[0].launched for moment in self.ready)

    def hidden(self) -> float:
        """The part of the wire's busy time that lies before the last gradient was ready."""
        end_of_backward = self.ready[-1]
        busy = sum(sending.end - sending.start for sending in self.sent)
        behind = sum(max(0.0, min(sending.end, end_of_backward) - sending.start) for sending in self.sent)
        return behind / busy


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
) -> Timeline:
    """One backward pass with all-reduces, launched when a bucket is full, or all after backward."""
    shape = (cfg.width, cfg.width)
    weights = [torch.zeros(shape, requires_grad=True, device=group.device) for _ in range(cfg.layers)]
    x = torch.ones(1, cfg.width, device=group.device)
    for weight in weights:
        x = Slow.apply(x + x @ weight, compute_s)
    ready = []
    works = []

    def launch(bucket: list[int]) -> None:
        flat = torch.cat([weights[layer].grad.flatten() for layer in bucket])
        works.append(dist.all_reduce(flat, async_op=True))

    def hook(layer: int, _: torch.Tensor) -> None:
        ready.append(time.perf_counter() - start)
        for bucket in buckets:
            if overlap and layer == bucket[-1]:
                launch(bucket)

    for layer, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(partial(hook, layer))
    dist.barrier()
    with on_wire(Wire(cfg.alpha_s, cfg.bytes_per_s)) as wire:
        start = time.perf_counter()
        x.sum().backward()
        if not overlap:
            for bucket in buckets:
                launch(bucket)
        for work in works:
            work.wait()
    done = time.perf_counter() - start
    sent = [Sending(s.bytes, s.launched - start, s.start - start, s.end - start) for s in wire.log]
    return Timeline(ready, sent, wire.waits[0] - start, done)


def predict(buckets: list[list[int]], compute_s: float, cfg: Config, ranks: int) -> float:
    """Seconds that the alpha-beta model expects: each bucket waits for its gradients and for the wire."""
    wire = Wire(cfg.alpha_s, cfg.bytes_per_s)
    done = 0.0
    for bucket in buckets:
        full = (cfg.layers - bucket[-1]) * compute_s  # layers are numbered forward
        done = max(done, full) + wire.seconds(len(bucket) * cfg.width**2 * 4, ranks)
    return done


def compare(cfg: Config, group: Group) -> dict[str, Timeline]:
    """The three ways on the same net; what they hide is asserted by the order in which things happen."""
    backwards = list(reversed(range(cfg.layers)))
    each = [[layer] for layer in backwards]
    one_layer = Wire(cfg.alpha_s, cfg.bytes_per_s).seconds(cfg.width**2 * 4, group.world_size)
    ways = {"naive": (each, False), "flat": ([backwards], False), "overlapped": (each, True)}
    timelines = {}
    for way, (buckets, overlap) in ways.items():
        line = backward(buckets, overlap, 1.25 * one_layer, cfg, group)
        expected_hidden = 1 - 1 / cfg.layers if overlap else 0.0
        expected_gradients = 1 if overlap else cfg.layers
        assert line.first_wait >= line.ready[-1], f"{way}: this rank waited while backward was under way"
        assert line.gradients_before_launch() == expected_gradients, (way, line.gradients_before_launch())
        assert abs(line.hidden() - expected_hidden) < 1e-6, (way, line.hidden())
        print_on_rank_0(
            f"{way:10}: {len(line.sent):2} all-reduces, the first after {expected_gradients:2} "
            f"of {cfg.layers} gradients; {line.hidden():.1%} of the wire's time is hidden"
        )
        timelines[way] = line
    return timelines


def sweep(cfg: Config, group: Group) -> list[dict]:
    """Times by bucket size, on a wire that is slower than backward, beside what the model expects."""
    backwards = list(reversed(range(cfg.layers)))
    rows = []
    for size in (1, 2, 4, 8, 16):
        buckets = [backwards[i : i + size] for i in range(0, cfg.layers, size)]
        predicted = predict(buckets, cfg.sweep_compute_s, cfg, group.world_size)
        took = []
        for _ in range(cfg.repeats):
            took.append(backward(buckets, True, cfg.sweep_compute_s, cfg, group).done)
        # sleeping never takes less than it should
        assert min(took) >= predicted, f"buckets of {size}: {min(took)} s, the model says {predicted} s"
        rows.append({"size": size, "predicted": predicted, "took": took})
    return rows


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        timelines = compare(cfg, group)
        rows = sweep(cfg, group)
        best = min(rows, key=lambda row: row["predicted"])
        assert best["size"] not in (1, cfg.layers), best
        lines = {way: asdict(line) for way, line in timelines.items()}
        record_results("09_paced", {"timelines": lines, "sweep": rows, "layer_bytes": cfg.width**2 * 4})


if __name__ == "__main__":
    run(main, Config())
