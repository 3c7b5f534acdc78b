"""When is each device at work? Layers of known duration on two devices, and the moments of each one's work.

Run it:      python labs/lab_15_idle.py
Written by:  notebooks/15_model_parallel.ipynb
"""

import time
from dataclasses import dataclass

import torch
from torch import nn

from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.two_devices import TwoDevices


@dataclass(frozen=True)
class Config:
    layers: int = 8
    width: int = 16
    forward_s: float = 5e-3  # of one layer; backward takes twice as long, as it computes two products
    steps: int = 3


class Span:
    """One piece of work: ``device`` did ``what`` from ``start`` to ``end``, in seconds of perf_counter."""

    def __init__(self, device: int, what: str, start: float) -> None:
        self.device = device
        self.what = what
        self.start = start
        self.end = start


class Paced(torch.autograd.Function):
    """Passes (batch, width) on as it is, and takes a given time both ways: the work of a layer."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, device: int, seconds: float, log: list[Span]) -> torch.Tensor:
        ctx.device = device
        ctx.seconds = seconds
        ctx.log = log
        work(device, "forward", seconds, log)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        work(ctx.device, "backward", 2 * ctx.seconds, ctx.log)
        return gradient, None, None, None


def work(device: int, what: str, seconds: float, log: list[Span]) -> None:
    span = Span(device, what, time.perf_counter())
    time.sleep(seconds)
    span.end = time.perf_counter()
    log.append(span)


class TwoStages(nn.Module):
    """``layers`` linear layers, the first ``cut`` of them on device 0: (batch, width) to (batch, width)."""

    def __init__(self, cut: int, devices: TwoDevices, cfg: Config, log: list[Span]) -> None:
        super().__init__()
        self.cut = cut
        self.devices = devices
        self.cfg = cfg
        self.log = log
        places = [devices.first] * cut + [devices.second] * (cfg.layers - cut)
        self.layers = nn.ModuleList(nn.Linear(cfg.width, cfg.width, device=place) for place in places)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            device = int(number >= self.cut)
            if number == self.cut and self.cut:
                x = self.devices.move("activations", x, 0, 1)
            x = Paced.apply(layer(x), device, self.cfg.forward_s, self.log)
        return x


def reference(cut: int, cfg: Config) -> list[float]:
    """The part of a step in which each device is idle, by the number of its layers alone."""
    return [1 - cut / cfg.layers, cut / cfg.layers]


def train(cut: int, devices: TwoDevices, cfg: Config) -> list[Span]:
    """A few steps; all that the two devices did."""
    log: list[Span] = []
    model = TwoStages(cut, devices, cfg, log)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(cfg.steps):
        optimizer.zero_grad()
        model(torch.ones(4, cfg.width, device=devices.first)).square().mean().backward()
        optimizer.step()
    return log


def check(cut: int, log: list[Span], cfg: Config) -> None:
    """The order of work, which no load on the machine can change."""
    halves = [(0, "forward")] * cut + [(1, "forward")] * (cfg.layers - cut)
    expected = halves + [(device, "backward") for device, _ in halves[::-1]]
    assert [(span.device, span.what) for span in log] == expected * cfg.steps
    assert all(a.end <= b.start for a, b in zip(log, log[1:], strict=False)), "two devices worked at once"


def main(cfg: Config) -> None:
    devices = TwoDevices.of_process(0, 1)
    lines = {}
    print(devices)
    for cut in (4, 2):
        log = train(cut, devices, cfg)
        check(cut, log, cfg)
        begin = log[0].start
        lines[cut] = [[s.device, s.what, s.start - begin, s.end - begin] for s in log]
        idle = " and ".join(f"{part:.0%}" for part in reference(cut, cfg))
        print(
            f"{cut} layers on device 0: never two at work at once; idle {idle} of the time, by their layers"
        )
    record_results("lab_15_idle", {"lines": lines})


if __name__ == "__main__":
    run(main, Config())
