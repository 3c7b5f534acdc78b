"""Check of exercise 07. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import math
from numbers import Real
from types import ModuleType

import torch
from torch import nn
from torch.func import functional_call

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.simulated_devices import Link

BATCH = 840  # divides by 1 to 8
TOLERANCE = 1e-3  # bytes


def build(rank: int) -> tuple[nn.Module, torch.Tensor]:
    """A model with buffers and a batch, of another size on each rank."""
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(5 + rank, 7), nn.BatchNorm1d(7), nn.Linear(7, 3 + rank))
    return net.eval(), torch.randn(BATCH, 5 + rank)


def count(devices: int, net: nn.Module, x: torch.Tensor) -> tuple[dict[str, int], int]:
    """Bytes through device 0 in one step, by the argument they come from; and the bytes of the output."""
    link = Link()
    arrived = []
    for device, part in enumerate(x.chunk(devices)):
        values = {}
        for name, parameter in net.named_parameters():
            values[name] = link.transfer("parameters", parameter, 0, device)
        for name, buffer in net.named_buffers():
            values[name] = link.transfer("buffers", buffer, 0, device)
        output = functional_call(net, values, link.transfer("inputs", part, 0, device))
        arrived.append(link.transfer("outputs", output, device, 0))
    whole = torch.cat(arrived)
    whole.square().mean().backward()
    through = link.through(0)
    kinds = ("parameters", "buffers", "inputs", "outputs")
    by_kind = {kind: through.get(kind, 0) + through.get(f"gradients of {kind}", 0) for kind in kinds}
    return by_kind, whole.nbytes


def ask(answer: ModuleType, devices: int, sizes: dict[str, int]) -> float:
    """What the answer predicts. Raises ``Wrong`` if that is not a finite number."""
    predicted = answer.bytes_through_device_0(devices, **sizes)
    if isinstance(predicted, bool) or not isinstance(predicted, Real):
        raise Wrong(f"the result is a {type(predicted).__name__}, expected a number of bytes")
    if not math.isfinite(predicted):
        raise Wrong(f"the result for {devices} devices is {predicted}, expected a number of bytes")
    return float(predicted)


def equal(predicted: float, counted: int) -> bool:
    """Whether both are the same number of bytes; a float may be off by rounding."""
    return abs(predicted - counted) < TOLERANCE


def check_kind(answer: ModuleType, devices: int, sizes: dict[str, int], kind: str, counted: int) -> None:
    """The part of the answer that comes from one argument: it goes away when that argument is 0."""
    share = ask(answer, devices, sizes) - ask(answer, devices, sizes | {kind: 0})
    if not equal(share, counted):
        raise Wrong(
            f"{devices} devices: for {sizes[kind]:,} bytes of {kind}, both ways, "
            f"{counted:,} were counted, yours are {share:,.7g}"
        )


def verify(answer: ModuleType, group: Group) -> str:
    net, x = build(group.rank)
    sizes = {
        "parameters": sum(p.nbytes for p in net.parameters()),
        "inputs": x.nbytes,
        "buffers": sum(b.nbytes for b in net.buffers()),
    }
    for devices in range(1, 9):
        counted, sizes["outputs"] = count(devices, net, x)
        predicted = ask(answer, devices, sizes)
        if devices == 1 and not equal(predicted, 0):
            raise Wrong(f"with 1 device nothing crosses, yours says {predicted:,.7g} bytes")
        for kind, size in counted.items():
            check_kind(answer, devices, sizes, kind, size)
        together = sum(counted.values())
        if not equal(predicted, together):
            raise Wrong(
                f"{devices} devices: each argument alone is right, but of all together "
                f"{together:,} bytes were counted, yours are {predicted:,.7g}"
            )
    return f"1 to 8 devices as counted, with 8 it is {predicted:,.0f} bytes through device 0. Well done."


if __name__ == "__main__":
    check_exercise("07_bytes", verify, ranks=2)
