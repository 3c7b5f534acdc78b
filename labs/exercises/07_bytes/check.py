"""Check of exercise 07. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from types import ModuleType

import torch
from torch import nn
from torch.func import functional_call

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.simulated_devices import Link

BATCH = 840  # divides by 1 to 8


def build(rank: int) -> tuple[nn.Module, torch.Tensor]:
    """A model with buffers and a batch, of another size on each rank."""
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(5 + rank, 7), nn.BatchNorm1d(7), nn.Linear(7, 3 + rank))
    return net.eval(), torch.randn(BATCH, 5 + rank)


def count(devices: int, net: nn.Module, x: torch.Tensor) -> tuple[dict[str, int], int]:
    """Bytes through device 0 in one step, by the argument they come from; and the bytes of the output."""
    link, arrived = Link(), []
    for device, part in enumerate(x.chunk(devices)):
        values = {name: link.transfer("parameters", p, 0, device) for name, p in net.named_parameters()}
        values |= {name: link.transfer("buffers", b, 0, device) for name, b in net.named_buffers()}
        output = functional_call(net, values, link.transfer("inputs", part, 0, device))
        arrived.append(link.transfer("outputs", output, device, 0))
    whole = torch.cat(arrived)
    whole.square().mean().backward()
    through = link.through(0)
    kinds = ("parameters", "buffers", "inputs", "outputs")
    return {k: through.get(k, 0) + through.get(f"gradients of {k}", 0) for k in kinds}, whole.nbytes


def verify(answer: ModuleType, group: Group) -> str:
    net, x = build(group.rank)
    sizes = {"parameters": sum(p.nbytes for p in net.parameters()), "inputs": x.nbytes}
    sizes["buffers"] = sum(b.nbytes for b in net.buffers())
    for devices in range(1, 9):
        counted, sizes["outputs"] = count(devices, net, x)
        predicted = answer.bytes_through_device_0(devices, **sizes)
        if not isinstance(predicted, int | float):
            raise Wrong(f"the result is a {type(predicted).__name__}, expected a number of bytes")
        if devices == 1 and predicted:
            raise Wrong(f"with 1 device nothing crosses, yours says {predicted:,.0f} bytes")
        for kind, size in counted.items():
            share = predicted - answer.bytes_through_device_0(devices, **(sizes | {kind: 0}))
            if share != size:
                raise Wrong(
                    f"{devices} devices: for {sizes[kind]:,} bytes of {kind}, both ways, "
                    f"{size:,} were counted, yours are {share:,.0f}"
                )
        if predicted != sum(counted.values()):
            raise Wrong(f"{devices} devices: counted {sum(counted.values()):,} bytes, yours {predicted:,.0f}")
    return f"1 to 8 devices as counted, with 8 it is {predicted:,.0f} bytes through device 0. Well done."


if __name__ == "__main__":
    check_exercise("07_bytes", verify)
