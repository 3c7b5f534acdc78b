"""A simulation of two devices: when is each at work, and when does it wait for the other?

Run it:      python labs/lesson_15/proof_idle.py
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_all_equal
from shared.training.timeline import COMPUTE, SimulatedDevices, Span, Task, bubble, busy_together


@dataclass(frozen=True)
class Config:
    layers: int = 8
    width: int = 16
    batch: int = 8
    micro_batches: int = 4
    forward_s: float = 5e-3  # of one layer and the whole batch; backward computes two products: twice as long
    tolerance: float = 1e-12  # float64


@dataclass(frozen=True)
class Timeline:
    """What devices computed: as it happened, and as dependencies alone would have it."""

    executed: list[Span]
    ideal: list[Span]


class LayerPass:
    """Forward and backward of one layer for one micro-batch; what backward needs is kept in between."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x = x.detach().requires_grad_()
        self.y = self.layer(self.x)
        return self.y.detach()

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        self.y.backward(gradient)
        return self.x.grad


def launch_step(
    devices: SimulatedDevices,
    layers: nn.ModuleList,
    places: list[int],
    pieces: list[torch.Tensor],
    cfg: Config,
) -> None:
    """Queue forward and backward of each micro-batch, (rows, width), on the devices of the layers.

    All forward passes come first, as in GPipe. Returns at once: the devices work through their queues.
    """
    share = cfg.forward_s / len(pieces)
    queued: list[tuple[list[LayerPass], Task]] = []
    for number, x in enumerate(pieces):
        value = devices.given(places[0], x)
        passes = [LayerPass(layer) for layer in layers]
        for layer_pass, place in zip(passes, places, strict=True):
            value = devices.send(value, place)
            value = devices.compute(place, f"forward {number}", share, layer_pass.forward, value)
        queued.append((passes, value))
    for number, (passes, value) in enumerate(queued):
        gradient = devices.compute(places[-1], "loss", 0.0, partial(gradient_of_loss, cfg.batch), value)
        for layer_pass, place in zip(reversed(passes), reversed(places), strict=True):
            gradient = devices.send(gradient, place)
            gradient = devices.compute(place, f"backward {number}", 2 * share, layer_pass.backward, gradient)


def gradient_of_loss(batch: int, y: torch.Tensor) -> torch.Tensor:
    """Of the sum of squares, divided by the rows of the whole batch."""
    return 2 * y / batch


def build(cfg: Config) -> nn.ModuleList:
    torch.manual_seed(15)
    return nn.ModuleList(nn.Linear(cfg.width, cfg.width, dtype=torch.float64) for _ in range(cfg.layers))


def batch(cfg: Config) -> torch.Tensor:
    return torch.randn(cfg.batch, cfg.width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradients(layers: nn.ModuleList) -> list[tuple[str, torch.Tensor]]:
    return [(name, p.grad) for name, p in layers.named_parameters()]


def reference(cfg: Config) -> nn.ModuleList:
    """The same layers on one device, the whole batch at once."""
    layers = build(cfg)
    y = batch(cfg)
    for layer in layers:
        y = layer(y)
    (y.square().sum() / cfg.batch).backward()
    return layers


def train(cut: int, micro_batches: int, cfg: Config) -> Timeline:
    """A step with ``cut`` layers on device 0; the gradients must equal those of one device."""
    places = [0] * cut + [1] * (cfg.layers - cut)
    pieces = list(batch(cfg).chunk(micro_batches))
    layers = build(cfg)
    with SimulatedDevices(2) as devices:
        launch_step(devices, layers, places, pieces, cfg)
        timeline = Timeline(computed(devices.finish()), computed(devices.ideal()))
    assert_all_equal(f"cut {cut}", gradients(layers), gradients(reference(cfg)), cfg.tolerance)
    return timeline


def computed(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.queue == COMPUTE and span.what != "loss"]


def both_at_work(spans: list[Span]) -> float:
    """Seconds in which both devices worked at the same time."""
    return busy_together(spans, (0, COMPUTE), (1, COMPUTE))


def idle_of(device: int, spans: list[Span]) -> float:
    """The share of the step in which one device has nothing to do."""
    busy = sum(span.end - span.start for span in spans if span.device == device)
    return 1 - busy / max(span.end for span in spans)


def main(cfg: Config) -> None:
    pieces = cfg.micro_batches
    runs = {
        "4 of 8 layers on device 0": train(4, 1, cfg),
        "2 of 8 layers on device 0": train(2, 1, cfg),
        f"4 of 8 layers, {pieces} micro-batches": train(4, pieces, cfg),
    }
    expected = dict(zip(runs, (1 / 2, 1 / 2, 1 / (pieces + 1)), strict=True))
    lines = {}
    for number, (name, timeline) in enumerate(runs.items()):
        depends = number < 2  # the whole batch goes through one device after the other
        if depends and both_at_work(timeline.executed) > 0.0:
            raise CourseError(f"{name}: the devices should never have worked at once")
        if not depends and both_at_work(timeline.ideal) == 0.0:
            raise CourseError(f"{name}: the devices should have worked at once at times")
        idle = bubble(timeline.ideal, 2)
        if abs(idle - expected[name]) > 1e-9:
            raise CourseError(f"{name}: idle is {idle:.1%} of the time, expected {expected[name]:.1%}")
        together = "never both at work" if depends else "both at work at times"
        own = ", ".join(f"device {device} {idle_of(device, timeline.ideal):.0%}" for device in (0, 1))
        print(f"{name}: {together}; idle on average {idle:.1%} ({own})")
        lines[name] = [[s.device, s.what, s.start, s.end] for s in timeline.ideal]
    record_results("15_idle", {"lines": lines})


if __name__ == "__main__":
    run(main, Config())
