"""Backward in two halves, I and W: what each computes, and what stays in memory between them.

Run it:      python labs/lesson_16/proof_halves.py
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from shared.runtime.errors import CourseError
from shared.runtime.run import run
from shared.training.gpt import Block, GPTConfig
from shared.training.storages import StorageRecorder

from lab_16_executor import Pipeline
from lesson_16.stage import Stage


def where_parameters_enter(
    y: torch.Tensor, x: torch.Tensor, parameters: Sequence[nn.Parameter]
) -> list[tuple[GradientEdge, list[nn.Parameter]]]:
    """The places in the graph of ``y`` where parameters meet what came from ``x``: what I leaves for W.

    Each parameter must be used once, as it is. torch does the like in torch.distributed.pipelining._backward.
    """
    source = get_gradient_edge(x).node
    own = {get_gradient_edge(p).node: p for p in parameters}
    from_x: dict = {}  # {node: whether x is behind it}
    behind: dict = {}  # {node: parameters behind it}
    places = []
    todo = [y.grad_fn]
    while todo:
        node = todo[-1]
        inputs = [input_node for input_node, _ in node.next_functions if input_node is not None]
        unknown = [input_node for input_node in inputs if input_node not in from_x]
        if unknown:
            todo += unknown
            continue
        todo.pop()
        if node in from_x:
            continue
        from_x[node] = node is source or any(from_x[input_node] for input_node in inputs)
        entering = [p for input_node in inputs if not from_x[input_node] for p in behind[input_node]]
        behind[node] = [own[node]] if node in own else entering
        if from_x[node] and entering:
            places.append((GradientEdge(node, 0), entering))
    return places


@dataclass(eq=False)
class Saved:
    """A buffer for a tensor that autograd keeps for backward. It can be emptied while the graph is there."""

    tensor: torch.Tensor | None
    needed: bool = False


@dataclass
class Half:
    """A place where parameters enter the graph, and the gradient that I has left there for W."""

    edge: GradientEdge
    parameters: list[nn.Parameter]
    gradient: torch.Tensor


def boxes_for(saved: WeakSet) -> saved_tensors_hooks:
    """Within it, what autograd saves lies in boxes. ``saved`` has those that autograd has not freed."""

    def pack(tensor: torch.Tensor) -> Saved:
        box = Saved(tensor)
        saved.add(box)
        return box

    def unpack(box: Saved) -> torch.Tensor:
        box.needed = True
        return box.tensor

    return saved_tensors_hooks(pack, unpack)


def input_half(
    y: torch.Tensor, x: torch.Tensor, parameters: Sequence[nn.Parameter], gradient: torch.Tensor | None
) -> tuple[torch.Tensor, list[Half]]:
    """I: the gradient of ``x``, and what is left for W. The graph stays."""
    places = where_parameters_enter(y, x, parameters)
    edges = [edge for edge, _ in places]
    of_input, *of_edges = torch.autograd.grad(y, [x, *edges], gradient, retain_graph=True)
    halves = []
    for (edge, entering), part in zip(places, of_edges, strict=True):
        halves.append(Half(edge, entering, part))
    return of_input, halves


def drop_what_w_does_not_need(halves: list[Half], saved: WeakSet) -> None:
    """Empty all boxes but those of the operations at which W begins."""
    for box in saved:
        box.needed = False
    for half in halves:
        node = half.edge.node
        for name in dir(node):
            if name.startswith("_saved_"):
                getattr(node, name)  # takes the tensor out of its box, which notes that it is needed
    for box in saved:
        if not box.needed:
            box.tensor = None


def weight_half(halves: list[Half]) -> None:
    """W: add to the gradients of the parameters."""
    for half in halves:
        parts = torch.autograd.grad(half.edge, half.parameters, half.gradient)
        for parameter, part in zip(half.parameters, parts, strict=True):
            parameter.grad = part if parameter.grad is None else parameter.grad + part


class SplitPipeline(Pipeline):
    """A pipeline that also does I and W, the halves of B. Its stages must not recompute.

    The first stage has no input to give a gradient to: all of its backward pass is W.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.saved: dict[tuple[int, int], WeakSet] = {}  # what autograd keeps
        self.halves: dict[tuple[int, int], list[Half]] = {}
        self.arrived: dict[int, torch.Tensor | None] = {}  # gradients that the first stage's W will need

    def do(self, kind: str, stage: int, number: int) -> None:
        if kind == "I":
            self.backward_input(stage, number)
        elif kind == "W":
            self.backward_weight(stage, number)
        else:
            super().do(kind, stage, number)

    def forward(self, stage: int, number: int) -> None:
        saved = self.saved[stage, number] = WeakSet()
        with boxes_for(saved):
            super().forward(stage, number)

    def backward_input(self, stage: int, number: int) -> None:
        gradient = self.gradient_of_output(stage, number)
        if stage == 0:
            self.arrived[number] = gradient
            return
        x, y = self.kept.pop((stage, number))
        parameters = [p for p in self.stages[stage].parameters() if p.requires_grad]
        of_input, halves = input_half(y, x, parameters, gradient)
        drop_what_w_does_not_need(halves, self.saved[stage, number])
        self.halves[stage, number] = halves
        self.send("gradients", stage - 1, number, of_input)

    def backward_weight(self, stage: int, number: int) -> None:
        if stage == 0:
            _, y = self.kept.pop((stage, number))
            y.backward(self.arrived.pop(number))
        else:
            weight_half(self.halves.pop((stage, number)))
        self.live -= 1


@dataclass(frozen=True)
class Config:
    gpt: GPTConfig = field(default_factory=lambda: GPTConfig(context=16, layers=2))  # a stage in the middle
    rows: int = 2  # of a micro-batch


def middle_stage(cfg: GPTConfig) -> Stage:
    return Stage({str(i): Block(cfg) for i in range(cfg.layers)})


def costs(cfg: Config) -> dict[str, float]:
    """FLOPs of each kind of action, in forward passes, for a stage in the middle."""
    work = {}

    def measured(kind: str, action: Callable) -> Any:
        with FlopCounterMode(display=False) as flops:
            result = action()
        work[kind] = flops.get_total_flops()
        return result

    stage = middle_stage(cfg.gpt)
    x = torch.randn(cfg.rows, cfg.gpt.context, cfg.gpt.width, dtype=cfg.gpt.dtype, requires_grad=True)
    y = measured("F", partial(stage, x))
    gradient = torch.randn_like(y)
    measured("B", partial(y.backward, gradient))
    y = stage(x)
    _, halves = measured("I", partial(input_half, y, x, list(stage.parameters()), gradient))
    measured("W", partial(weight_half, halves))
    if work["I"] + work["W"] != work["B"]:
        raise CourseError(f"I and W cost {(work['I'] + work['W']) / work['B']:.2f} of B")
    return {kind: flops / work["F"] for kind, flops in work.items()}


def kept_bytes(cfg: Config, drop: bool = True) -> dict[str, int]:
    """Bytes that are alive because of one micro-batch: after F, and between I and W."""
    stage = middle_stage(cfg.gpt)
    parameters = list(stage.parameters())
    saved: WeakSet = WeakSet()
    with StorageRecorder(parameters) as memory:
        before = memory.bytes_alive()
        x = torch.randn(cfg.rows, cfg.gpt.context, cfg.gpt.width, dtype=cfg.gpt.dtype, requires_grad=True)
        with boxes_for(saved):
            y = stage(x)
        kept = {"F": memory.bytes_alive() - before}
        _, halves = input_half(y, x, parameters, torch.randn_like(y))
        if drop:
            drop_what_w_does_not_need(halves, saved)
        del x, y, _
        kept["I"] = memory.bytes_alive() - before
    return kept


def main(cfg: Config) -> None:
    flops = ", ".join(f"{kind} {number:.2f}" for kind, number in costs(cfg).items())
    print(f"FLOPs, in forward passes: {flops}")
    whole = kept_bytes(cfg, drop=False)
    dropped = kept_bytes(cfg)
    print(f"one micro-batch keeps {whole['F']:,} bytes after F")
    for what, kept in (("the whole graph", whole), ("what W needs", dropped)):
        print(f"    between I and W, if I leaves {what}: {kept['I'] / kept['F']:.0%}")
    if not dropped["I"] < whole["I"]:
        raise CourseError("I should have dropped what W does not need")


if __name__ == "__main__":
    run(main, Config())
