"""Bytes that a rank holds: parameters, gradients, optimizer state, activations."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from .errors import PlanError
from .flops import NONE, SELECTIVE
from .layout import Layout, blocks_of, stages_of
from .models import FIRST, LAST, Model, Tensor, tensors_of
from .pipeline import at_once


@dataclass(frozen=True)
class Numbers:
    """Bytes of one number of each kind.

    Attributes:
        optimizer: of all that the optimizer keeps for a parameter: Adam's two moments, and a copy in float32
            if the parameter itself has fewer bits.
        per_tensor: what the optimizer keeps for a whole tensor, such as the count of its steps.
    """

    parameter: int = 2
    gradient: int = 4
    optimizer: int = 12
    per_tensor: int = 0
    activation: int = 2


MIXED = Numbers()  # bfloat16, gradients added up in float32, Adam in float32
ZERO_PAPER = Numbers(gradient=2)  # Rajbhandari et al. 2020
FLOAT64 = Numbers(parameter=8, gradient=8, optimizer=16, per_tensor=4, activation=8)  # the lessons
FLOAT32 = Numbers(parameter=4, gradient=4, optimizer=8, per_tensor=4, activation=4)


@dataclass(frozen=True)
class Memory:
    """Bytes by kind. ``activations`` is at the fullest moment; what a framework needs besides is not here."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


def states(parameters: float, numbers: Numbers, zero: int, ranks: int) -> float:
    """Bytes of parameters, gradients and optimizer state on each of ``ranks``, for so many parameters."""
    parts = [numbers.optimizer, numbers.gradient, numbers.parameter]
    total = 0.0
    for stage, size in enumerate(parts, start=1):
        total += parameters * size / (ranks if zero >= stage else 1)
    return total


class Held:
    """Parameters of a rank. Sums are kept, because a search asks for them again and again."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors
        self.numbers = sum(tensor.numbers for tensor in tensors)
        self.dense = sum(tensor.numbers for tensor in tensors if not tensor.experts)
        self.undivided = sum(
            tensor.numbers for tensor in tensors if tensor.divided is None and not tensor.experts
        )
        self._sharded: dict[tuple[int, int, bool], int] = {}

    def padded(self, ranks: int) -> int:
        """Numbers, if each tensor by itself is filled up until so many ranks can share it evenly."""
        return sum(math.ceil(tensor.numbers / ranks) * ranks for tensor in self.tensors)

    @cached_property
    def blocks(self) -> list[int | str]:
        """The numbers of the blocks of which something is here."""
        return sorted({tensor.place for tensor in self.tensors if tensor.place not in (FIRST, LAST)})

    @property
    def units(self) -> int:
        """Of FSDP as the lessons wrap a model: each block, and all the rest in one."""
        return len(self.blocks) + any(tensor.place in (FIRST, LAST) for tensor in self.tensors)

    def sharded(self, ranks: int, index: int, only_blocks: bool = False) -> int:
        """Numbers of all parts number ``index``, if so many ranks share each tensor by rows."""
        key = (ranks, index, only_blocks)
        if key not in self._sharded:
            total = 0
            for tensor in self.tensors:
                if not only_blocks or tensor.place not in (FIRST, LAST):
                    total += shard(tensor, ranks, index)
            self._sharded[key] = total
        return self._sharded[key]


def held_by(model: Model, layout: Layout, position: dict[str, int]) -> Held:
    """What TP, EP and PP leave of the parameters on a rank, before ZeRO."""
    plain = Layout(tp=layout.tp, ep=layout.ep, pp=layout.pp, chunks=layout.chunks)
    return _held(model, plain, position["pp"])


@lru_cache(maxsize=512)
def _held(model: Model, layout: Layout, index: int) -> Held:
    return Held(tuple(_tensors_of(model, layout, index)))


def _tensors_of(model: Model, layout: Layout, index: int) -> Iterator[Tensor]:
    last = layout.pp * layout.chunks - 1
    stages = stages_of(layout, index)
    layers = set(blocks_of(model, layout, index))
    for tensor in tensors_of(model):
        at_first = tensor.place == FIRST and 0 in stages
        at_last = tensor.place == LAST and last in stages
        tied = model.tied and tensor.name == "tokens.weight" and last in stages
        if at_first or at_last or tied or tensor.place in layers:
            yield _own_part(tensor, layout)


def _own_part(tensor: Tensor, layout: Layout) -> Tensor:
    shape = list(tensor.shape)
    if tensor.divided is not None:
        if shape[tensor.divided] % layout.tp:
            raise PlanError(f"{tensor.name} {tensor.shape} does not divide by TP {layout.tp}")
        shape[tensor.divided] //= layout.tp
    if tensor.experts:
        shape[0] //= layout.ep
    return replace(tensor, shape=tuple(shape))


def shard(tensor: Tensor, ranks: int, index: int) -> int:
    """Numbers of the part number ``index`` when FSDP2 divides a tensor by rows, as ``chunk`` does."""
    rows = tensor.shape[0]
    each = math.ceil(rows / ranks)
    own = max(0, min(each, rows - each * index))
    return own * tensor.numbers // rows


@dataclass(frozen=True)
class Work:
    """What a rank has to do in a step: what it is asked about, and what follows from that.

    Attributes:
        sequences: of all ranks together.
        position: {dimension of the mesh: index of the rank}.
    """

    model: Model
    layout: Layout
    sequences: int
    numbers: Numbers
    position: dict[str, int]

    @cached_property
    def held(self) -> Held:
        return held_by(self.model, self.layout, self.position)

    @cached_property
    def blocks(self) -> list[int]:
        return blocks_of(self.model, self.layout, self.position["pp"])

    @property
    def first(self) -> bool:
        return self.position["pp"] == 0

    @property
    def last(self) -> bool:
        return self.position["pp"] == self.layout.pp - 1

    @property
    def rounds(self) -> int:
        """Micro-batches."""
        return self.layout.micro_batches(self.sequences)

    @property
    def tokens(self) -> float:
        """That the rank computes in all rounds."""
        return self.sequences / self.layout.readers * self.model.context / self.layout.cp

    @property
    def tokens_at_once(self) -> float:
        return self.layout.micro_batch * self.model.context / self.layout.cp


def work_of(
    model: Model, layout: Layout, sequences: int, numbers: Numbers, position: dict[str, int] | None
) -> Work:
    """Of the rank at this position, by default the first."""
    return Work(model, layout, sequences, numbers, position or layout.position(0))


def memory_of(
    model: Model,
    layout: Layout,
    sequences: int,
    numbers: Numbers = MIXED,
    position: dict[str, int] | None = None,
    lean: bool = True,
) -> Memory:
    """What a rank holds, by default the first one, which holds most with 1F1B.

    ZeRO 1 and 2 divide one flat tensor, or, by hand, each tensor by itself; then a rank's parts are copies.
    ZeRO 3 divides each parameter by rows. While ZeRO 2 adds up the gradients of several micro-batches, each
    rank has whole ones.
    """
    work = work_of(model, layout, sequences, numbers, position)
    held = work.held
    whole = held.numbers
    ranks = layout.dp
    parameters, gradients, stepped, counts = whole, whole, whole, len(held.tensors)
    if layout.zero in (1, 2) and ranks > 1:
        part = math.ceil(whole / ranks)
        if layout.by_tensor:
            part = held.padded(ranks) // ranks
            parameters += part
        else:
            counts = 1
        stepped = part
        if layout.zero == 2 and work.rounds == 1:
            gradients = part
    if layout.zero == 3:
        parameters = gradients = stepped = held.sharded(ranks, work.position["dp"])
    return Memory(
        parameters * numbers.parameter,
        gradients * numbers.gradient,
        stepped * numbers.optimizer + counts * numbers.per_tensor,
        activations(work, lean),
    )


def per_layer(model: Model, layout: Layout, numbers: Numbers = MIXED, lean: bool = True) -> float:
    """Bytes that a block keeps for backward, of one micro-batch.

    A GPT as Korthikanti et al. 2022 count it: s b h (34 + 5 a s / h), where selective recomputation drops the
    second term, and full recomputation keeps the block's input alone. Tensor parallelism divides all but 10
    of the 34, with sequence parallelism these too.

    A gated model has no dropout and a fused attention, which keeps no s x s matrix. ``lean`` keeps what
    matrix products need, and computes norms, the activation and its product again.
    """
    tokens = layout.micro_batch * model.context / layout.cp
    inside = layout.tp
    between = layout.tp if layout.sequence_parallel else 1
    size = numbers.activation
    if layout.recompute not in (NONE, SELECTIVE):
        return tokens * model.width * size / between
    if not model.gated:
        scores = 0.0
        if layout.recompute == NONE:
            scores = 5 * model.heads * model.context / model.width / inside
        return tokens * model.width * (10 / between + 24 / inside + scores) * size / 2
    queries = model.heads * model.head_width / model.width
    keys = model.kv_heads * model.head_width / model.width
    hidden = _hidden_per_token(model) / model.width
    at_border = 2.0 if lean else 4.0  # the inputs of the two norms; their outputs
    divided = 2 * queries + 2 * keys + (2 if lean else 4) * hidden
    return tokens * model.width * (at_border / between + divided / inside) * size


def _hidden_per_token(model: Model) -> float:
    if model.experts is None:
        return model.hidden
    experts = model.experts
    return (experts.chosen + experts.shared) * experts.hidden


def activations(work: Work, lean: bool = True) -> int:
    """Bytes that a rank keeps for backward at the fullest moment, and the logits of the last stage."""
    model, layout, numbers = work.model, work.layout, work.numbers
    held = at_once(layout.schedule, layout.pp, work.position["pp"], work.rounds, layout.chunks)
    if layout.pp == 1:
        held = 1.0
    total = held * len(work.blocks) * per_layer(model, layout, numbers, lean)
    if work.last:
        total += work.tokens_at_once * model.vocabulary / layout.tp * (numbers.activation + 4)
    if layout.recompute not in (NONE, SELECTIVE):
        kept = replace(layout, recompute=NONE)
        total += per_layer(model, kept, numbers, lean)  # the block that is computed again
    return math.ceil(total)
