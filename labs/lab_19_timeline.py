"""What prefetching hides: all-gathers and reduce-scatters beside computation, on two simulated devices.

Run it:      python labs/lab_19_timeline.py
Written by:  notebooks/19_fsdp.ipynb
"""

from dataclasses import dataclass

import torch

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal
from shared.training.timeline import COMMUNICATE, COMPUTE, SimulatedDevices, Span, Task, busy_together

DEVICES = (0, 1)


@dataclass(frozen=True)
class Config:
    units: int = 4
    width: int = 16
    rows: int = 8  # of the batch on each device
    forward_s: float = 0.012  # of one unit; backward takes twice as long
    gather_s: float = 0.008  # of one unit; a reduce-scatter takes as long
    tolerance: float = 1e-12  # float64


@dataclass
class Step:
    """One step, queued on both devices: ``gradients[unit]`` holds each device's shard."""

    gradients: dict[int, list[Task]]


def weights(cfg: Config) -> list[torch.Tensor]:
    """One (width, width) matrix for each unit."""
    generator = torch.Generator().manual_seed(19)
    shape = (cfg.width, cfg.width)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) / 4 for _ in range(cfg.units)]


def images(device: int, cfg: Config) -> torch.Tensor:
    generator = torch.Generator().manual_seed(device)
    return torch.randn(cfg.rows, cfg.width, generator=generator, dtype=torch.float64)


def reference(cfg: Config) -> list[torch.Tensor]:
    """Gradients of one process that has the rows of both devices."""
    whole = [weight.requires_grad_() for weight in weights(cfg)]
    x = torch.cat([images(device, cfg) for device in DEVICES])
    for weight in whole:
        x = torch.tanh(x @ weight)
    x.square().sum().backward()
    return [weight.grad for weight in whole]


class UnitPass:
    """Forward and backward of one unit on one device; what backward needs is kept in between."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self.x = x.detach().requires_grad_()
        return torch.tanh(self.x @ weight)

    def backward(self, gradient: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weight was gathered anew, so forward is computed again with it, as in the unit by hand."""
        leaf = weight.detach().requires_grad_()
        torch.tanh(self.x @ leaf).backward(gradient)
        return self.x.grad, leaf.grad


class ShardedStep:
    """Queues a step of FSDP. ``prefetch``: how many units are gathered while an earlier one computes."""

    def __init__(self, devices: SimulatedDevices, prefetch: int, cfg: Config) -> None:
        self.devices = devices
        self.prefetch = prefetch
        self.cfg = cfg
        self.shards = [weight.chunk(len(DEVICES)) for weight in weights(cfg)]
        self.computed: list[list[Task]] = []  # what each device has computed, unit after unit

    def gathered(self, unit: int, position: int) -> list[Task]:
        """The whole weight on each device. ``position``: how many units of the step compute before it."""
        shards = [self.devices.given(device, self.shards[unit][device]) for device in DEVICES]
        waits_for = position - 1 - self.prefetch
        if waits_for >= 0:  # it may not begin before that unit has computed
            shards = [
                self.devices.compute(device, "launch", 0.0, keep_first, shard, done)
                for device, shard, done in zip(DEVICES, shards, self.computed[waits_for], strict=True)
            ]
        return self.devices.all_gather(shards, f"all-gather {unit}")

    def queue(self) -> Step:
        cfg = self.cfg
        units = list(range(cfg.units))
        order = units + units[::-1]  # forward, then backward
        passes = {(unit, device): UnitPass() for unit in units for device in DEVICES}
        values = [self.devices.given(device, images(device, cfg)) for device in DEVICES]
        gradients: dict[int, list[Task]] = {}
        ahead: dict[int, list[Task]] = {}
        for position, unit in enumerate(order):
            for later in range(position, min(position + self.prefetch + 1, len(order))):
                if later not in ahead:
                    ahead[later] = self.gathered(order[later], later)
            whole = ahead[position]
            if position < cfg.units:
                values = [
                    self.devices.compute(d, f"forward {unit}", cfg.forward_s, passes[unit, d].forward, x, w)
                    for d, x, w in zip(DEVICES, values, whole, strict=True)
                ]
                self.computed.append(values)
                if position == cfg.units - 1:
                    values = [self.devices.compute(y.device, "loss", 0.0, twice, y) for y in values]
                continue
            both = [
                self.devices.compute(
                    d, f"backward {unit}", 2 * cfg.forward_s, passes[unit, d].backward, gradient, w
                )
                for d, gradient, w in zip(DEVICES, values, whole, strict=True)
            ]
            self.computed.append(both)
            values = [self.devices.compute(pair.device, "input", 0.0, first_of, pair) for pair in both]
            own = [self.devices.compute(pair.device, "weight", 0.0, second_of, pair) for pair in both]
            gradients[unit] = self.devices.reduce_scatter(own, f"reduce-scatter {unit}")
        return Step(gradients)


def keep_first(shard: torch.Tensor, _: object) -> torch.Tensor:
    return shard


def twice(y: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of squares."""
    return 2 * y


def first_of(pair: tuple) -> torch.Tensor:
    return pair[0]


def second_of(pair: tuple) -> torch.Tensor:
    return pair[1]


def timeline(prefetch: int, cfg: Config) -> list[Span]:
    """What both devices do by dependencies alone; the shards of gradients must equal one process's."""
    size = cfg.width * cfg.width * 8
    share = size // len(DEVICES)  # of a gather or reduce-scatter each device sends so much
    with SimulatedDevices(len(DEVICES), bytes_per_s=share / cfg.gather_s) as devices:
        step = ShardedStep(devices, prefetch, cfg).queue()
        executed = devices.finish()
        ideal = devices.ideal()
    for unit, whole in enumerate(reference(cfg)):
        for device, part in enumerate(whole.chunk(len(DEVICES))):
            found = step.gradients[unit][device].value()
            assert_equal(f"gradient of unit {unit} on device {device}", found, part, cfg.tolerance)
    assert_order(executed)
    return ideal


def assert_order(spans: list[Span]) -> None:
    """In what really ran, no unit computed before it was whole."""
    for device in DEVICES:
        gathered: dict[str, list[float]] = {}
        for span in spans:
            kind, _, unit = span.what.partition(" ")
            if span.device != device:
                continue
            if kind == "all-gather":
                gathered.setdefault(unit, []).append(span.end)
            elif kind in ("forward", "backward"):
                place = 0 if kind == "forward" else -1
                if gathered[unit][place] > span.start:
                    raise CourseError(f"{span.what} began before its all-gather was over")


def whole_at_once(spans: list[Span]) -> int:
    """The most units that are whole on device 0 at the same time, from the gather's end to the use's end."""
    ends = {span.what: span.end for span in spans if span.device == 0 and span.queue == COMPUTE}
    lives = []
    seen = set()
    for span in spans:
        if span.device == 0 and span.what.startswith("all-gather"):
            unit = span.what.split()[1]
            use = "backward" if unit in seen else "forward"
            seen.add(unit)
            lives.append((span.end, ends[f"{use} {unit}"]))
    return max(sum(begin <= moment < end for begin, end in lives) for moment, _ in lives)


def main(cfg: Config) -> None:
    found = {}
    for prefetch, name in enumerate(("no prefetching", "one unit ahead")):
        spans = timeline(prefetch, cfg)
        length = max(span.end for span in spans)
        hidden = busy_together(spans, (0, COMPUTE), (0, COMMUNICATE))
        talked = sum(s.end - s.start for s in spans if s.device == 0 and s.queue == COMMUNICATE)
        found[name] = {
            "spans": [[s.device, s.queue, s.what, s.start, s.end] for s in spans if s.end > s.start],
            "hidden": hidden / talked,
            "length": length,
            "whole at once": whole_at_once(spans),
        }
        print(
            f"{name}: the step takes {1e3 * length:.0f} ms, {hidden / talked:.0%} of the communication is "
            f"hidden, {found[name]['whole at once']} unit(s) whole at once"
        )
    without, ahead = found.values()
    messages = [line for line in without["spans"] if line[1] == COMMUNICATE and line[0] == 0]
    if without["whole at once"] != 1 or ahead["whole at once"] != 2:
        raise CourseError("prefetching one unit was to make two units whole at once, and one without it")
    if without["hidden"] != 0:
        raise CourseError("without prefetching nothing was to be hidden")
    saved = without["length"] - ahead["length"]
    if abs(saved - (len(messages) - 2) * cfg.gather_s) > 1e-6:
        raise CourseError("all but the first all-gather and the last reduce-scatter were to be hidden")
    record_results("lab_19_timeline", found)


if __name__ == "__main__":
    run(main, Config())
