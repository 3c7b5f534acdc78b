"""When is each device at work? Two devices with a queue each, and layers of known duration on them.

Run it:      python labs/lab_15_idle.py
Written by:  notebooks/15_model_parallel.ipynb
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_all_equal


@dataclass(frozen=True)
class Config:
    layers: int = 8
    width: int = 16
    batch: int = 8
    micro_batches: int = 4
    forward_s: float = 5e-3  # of one layer and the whole batch; backward computes two products: twice as long
    steps: int = 3
    tolerance: float = 1e-12  # float64


@dataclass(frozen=True)
class Span:
    """One piece of work: ``device`` did ``what`` from ``start`` to ``end``, in seconds of perf_counter."""

    device: int
    what: str
    start: float
    end: float


@dataclass
class Device:
    """A simulated device: a thread that does what is in its queue, one piece after the other.

    Like a GPU it is asynchronous: ``launch`` returns at once. A piece of work begins when the device is free
    and its inputs are there, on whichever device they were made. So idle time comes from dependencies alone.
    """

    number: int
    log: list[Span] = field(default_factory=list)
    queue: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))

    def launch(self, what: str, seconds: float, function: Callable, *inputs: Future) -> Future:
        return self.queue.submit(self._work, what, seconds, function, inputs)

    def _work(self, what: str, seconds: float, function: Callable, inputs: tuple[Future, ...]) -> object:
        values = [one.result() for one in inputs]
        start = time.perf_counter()
        result = function(*values)
        time.sleep(max(0.0, start + seconds - time.perf_counter()))
        self.log.append(Span(self.number, what, start, time.perf_counter()))
        return result


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
    layers: nn.ModuleList, places: list[Device], pieces: list[torch.Tensor], cfg: Config
) -> Future:
    """Queue forward and backward of each micro-batch, (rows, width), on the devices of the layers.

    All forward passes come first, as in GPipe. Returns the last piece of work.
    """
    share = cfg.forward_s / len(pieces)
    queued = []
    for x in pieces:
        value: Future = Future()
        value.set_result(x)
        passes = [LayerPass(layer) for layer in layers]
        for one, device in zip(passes, places, strict=True):
            value = device.launch("forward", share, one.forward, value)
        queued.append((passes, value))
    for passes, value in queued:
        gradient = places[-1].launch("loss", 0.0, lambda y: 2 * y / cfg.batch, value)
        for one, device in zip(passes[::-1], places[::-1], strict=True):
            gradient = device.launch("backward", 2 * share, one.backward, gradient)
    return gradient


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


def train(cut: int, micro_batches: int, cfg: Config) -> list[Span]:
    """Some steps with ``cut`` layers on device 0. All that both devices did; gradients equal one device's."""
    devices = (Device(0), Device(1))
    places = [devices[0]] * cut + [devices[1]] * (cfg.layers - cut)
    pieces = list(batch(cfg).chunk(micro_batches))
    warm_up(places, cfg)
    models = [build(cfg) for _ in range(cfg.steps)]
    for layers in models:
        launch_step(layers, places, pieces, cfg).result()
    for layers in models:
        assert_all_equal(f"cut {cut}", gradients(layers), gradients(reference(cfg)), cfg.tolerance)
    return spans_of(devices)


def warm_up(places: list[Device], cfg: Config) -> None:
    """One step that does not count: the first backward of a thread takes longer."""
    launch_step(build(cfg), places, [batch(cfg)], cfg).result()
    for device in places:
        device.log.clear()


def two_models(cfg: Config) -> list[Span]:
    """A whole model on each device, and nothing between them: the case in which both can always work."""
    devices = (Device(0), Device(1))
    for device in devices:
        warm_up([device] * cfg.layers, cfg)
    ends = [launch_step(build(cfg), [device] * cfg.layers, [batch(cfg)], cfg) for device in devices]
    for end in ends:
        end.result()
    return spans_of(devices)


def spans_of(devices: tuple[Device, Device]) -> list[Span]:
    spans = [span for device in devices for span in device.log if span.what != "loss"]
    return sorted(spans, key=lambda span: span.start)


def both_at_work(spans: list[Span]) -> float:
    """Seconds in which both devices worked at the same time."""
    first = [span for span in spans if span.device == 0]
    second = [span for span in spans if span.device == 1]
    return sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in first for b in second)


def main(cfg: Config) -> None:
    runs = {
        "4 of 8 layers on device 0": train(4, 1, cfg),
        "2 of 8 layers on device 0": train(2, 1, cfg),
        f"4 of 8 layers, {cfg.micro_batches} micro-batches": train(4, cfg.micro_batches, cfg),
        "two independent models": two_models(cfg),
    }
    for number, (name, spans) in enumerate(runs.items()):
        depends = number < 2  # the whole batch goes through one device after the other
        if (both_at_work(spans) == 0.0) != depends:
            was_to = "never to work at once" if depends else "to work at once at times"
            raise CourseError(f"{name}: the devices were {was_to}")
        print(f"{name}: {'never both at work' if depends else 'both at work at times'}")
    begin = {name: spans[0].start for name, spans in runs.items()}
    lines = {
        name: [[s.device, s.what, s.start - begin[name], s.end - begin[name]] for s in spans]
        for name, spans in runs.items()
    }
    record_results("lab_15_idle", {"lines": lines})


if __name__ == "__main__":
    run(main, Config())
