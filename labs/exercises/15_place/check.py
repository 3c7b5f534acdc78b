"""Check of exercise 15. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from collections.abc import Callable
from numbers import Integral
from types import ModuleType

import torch
import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ALLOWED = 1.05  # times the best
COLD = 30.0  # the first call takes so many times as long; the first layer's even more

MODELS = {  # milliseconds of each layer
    "a net whose layers widen": [1.0 * (i + 1) for i in range(12)],
    "a large head": [1.0] * 11 + [11.0],
    "a slow first layer": [10.0, *[2.0] * 8],
    "equal layers": [2.0] * 8,
}


class Machine:
    """Layers that take a given time on a simulated clock, on each rank a little more or less."""

    def __init__(self, milliseconds: list[float], rank: int, ranks: int) -> None:
        self.now = 0.0
        lean = (rank - (ranks - 1) / 2) / ranks  # low ranks are slow in the front, high ones at the end
        count = len(milliseconds)
        self.seconds = [
            ms / 1000 * (1 + 0.8 * lean * (2 * i / (count - 1) - 1)) for i, ms in enumerate(milliseconds)
        ]
        self.calls = [0] * count

    def clock(self) -> float:
        return self.now

    def layer(self, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            if x.item() != index:
                raise Wrong(
                    f"layer {index} was called with another input than the output of the layer before"
                )
            cold = COLD * (1 + 5 * (index == 0)) if self.calls[index] == 0 else 1.0
            self.calls[index] += 1
            self.now += cold * self.seconds[index]
            return x + 1

        return call


def slower(seconds: list[float], cut: int) -> float:
    return max(sum(seconds[:cut]), sum(seconds[cut:]))


def verify(answer: ModuleType, group: Group) -> str:
    report = []
    for name, milliseconds in MODELS.items():
        count = len(milliseconds)
        machine = Machine(milliseconds, group.rank, group.world_size)
        layers = [machine.layer(i) for i in range(count)]
        cut = answer.place(layers, torch.zeros((), device=group.device), machine.clock)
        if isinstance(cut, bool) or not isinstance(cut, Integral) or not 0 < cut < count:
            raise Wrong(f"{name}: place returned {cut!r}, expected a whole number from 1 to {count - 1}")
        cuts = [None] * group.world_size
        dist.all_gather_object(cuts, int(cut))
        if len(set(cuts)) > 1:
            raise Wrong(f"{name}: the ranks cut after {cuts} layers; DDP needs the same model on each")
        mean = [ms / 1000 for ms in milliseconds]  # the ranks' deviations cancel out
        best = min(slower(mean, c) for c in range(1, count))
        if slower(mean, cut) > ALLOWED * best:
            never = " (a layer was called only once)" if min(machine.calls) < 2 else ""
            raise Wrong(
                f"{name}: cut after {cut} of {count} layers, the slower device takes "
                f"{1e3 * slower(mean, cut):.0f} ms, with the best cut {1e3 * best:.0f} ms{never}"
            )
        report.append(f"{cut} of {count}")
    return f"layers on device 0: {', '.join(report)}. Well done."


if __name__ == "__main__":
    check_exercise("15_place", verify)
