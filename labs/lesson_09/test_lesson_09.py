"""Lesson 09: the paced wire keeps its time, and what torch.compile makes of a model under DDP."""

import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shared.comm.paced import GBIT, Wire

LAYERS = 3
WIDTH = 512  # a layer without bias has 1 MiB


def test_the_wire_takes_what_the_model_says():
    wire = Wire(alpha_s=1e-3, bytes_per_s=GBIT)
    assert wire.seconds(125_000, ranks=2) == pytest.approx(2e-3 + 1e-3)
    assert wire.seconds(125_000, ranks=4) == pytest.approx(6e-3 + 1.5e-3)
    assert wire.seconds(125_000, ranks=1) == 0
    assert Wire().seconds(125_000, ranks=4) == 0


def test_the_wire_carries_one_message_at_a_time():
    wire = Wire(alpha_s=0.5, bytes_per_s=GBIT)
    before = time.perf_counter()
    first, second = wire.send(1000, 2), wire.send(1000, 2)
    assert before <= first.launched == first.start < first.end == second.start
    assert second.end - second.start == pytest.approx(wire.seconds(1000, 2))


class Net(nn.Module):
    """Layers of 1 MiB: (batch, WIDTH) to (batch, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    dist.destroy_process_group()


def train(model: nn.Module) -> None:
    for _ in range(2):
        model(torch.ones(2, WIDTH)).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "inside", "runs_before", "expected"),
    [
        (Net, True, False, LAYERS),  # compiled, then wrapped: cut where buckets end
        (nn.Sequential, True, False, LAYERS),
        (Net, True, True, 1),  # has run before it is wrapped: one piece
        (Net, False, False, LAYERS),  # wrapped, then compiled
        (nn.Sequential, False, False, 0),  # nothing is compiled
    ],
)
def test_graphs_of_a_compiled_model_under_ddp(
    one_rank: None, net: type[nn.Module], inside: bool, runs_before: bool, expected: int
):
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable:
        graphs.append(graph)
        return graph.forward

    model = Net() if net is Net else Net().layers
    if inside:
        model.compile(backend=backend)
        if runs_before:
            train(model)
            model.zero_grad()
        ddp = DDP(model, bucket_cap_mb=1)
    else:
        ddp = torch.compile(DDP(model, bucket_cap_mb=1), backend=backend)
    train(ddp)
    assert len(graphs) == expected
