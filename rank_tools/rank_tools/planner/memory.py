"""Bytes that a rank holds: parameters, gradients, optimizer state, what FSDP gathers, activations, logits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache

from .flops import BY_OP, NONE, SELECTIVE, WHOLE
from .layout import EACH, Layout, blocks_of, stages_of
from .layout import LAST as AT_LAST
from .pipeline import at_once
from .stack import UNFUSED, Numbers
from .transformer import FIRST, LAST, Model, Tensor, has_experts, tensors_of


@dataclass(frozen=True)
class Memory:
    """Bytes by kind, at the fullest moment. CUDA's context, NCCL's buffers and gaps come on top.

    What newer frameworks save: for Llama 3 8B on 8 B200 torchao measured 33.7 GiB reserved (pytorch/ao at
    36027d82d, docs/source/workflows/training.md: a sequence of 8,192, FSDP2, ``op``), and with the stack
    ``torch`` this has 53.1. That torchtitan (6fc499f) compiles the loss: a logit takes 6 bytes in place of 13
    (-6.8). Embedding and head are units of their own there, so at the loss the head alone is gathered, 1.0 in
    place of 9.9 with gradients and two blocks (-8.9). And gradients count here beside all activations, though
    their shards come as activations go (-3.7). What is left is 33.6.

    Attributes:
        parameters, gradients, optimizer: held from step to step.
        gathered: FSDP's whole parameters, and gradients before they are divided.
        activations: kept for backward.
        working: the larger of the logits with their gradients and what backward of one block needs besides.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    working: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def states(parameters: float, numbers: Numbers, zero: int, ranks: int) -> float:
    """Bytes of parameters, gradients and optimizer state on each of ``ranks``, for so many parameters."""
    parts = [numbers.optimizer, numbers.gradient, numbers.parameter]
    return sum(
        parameters * size / (ranks if zero >= stage else 1) for stage, size in enumerate(parts, start=1)
    )


class Held:
    """Parameters of a rank before ZeRO. Sums are kept, because a search asks for them again and again."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors
        self.numbers = sum(tensor.numbers for tensor in tensors)
        self.dense = sum(tensor.numbers for tensor in tensors if not tensor.experts)
        self.experts = self.numbers - self.dense
        whole = [tensor.numbers for tensor in tensors if tensor.divided is None and not tensor.experts]
        self.undivided, self.whole_tensors = sum(whole), len(whole)
        blocks: dict[int | str, int] = {}
        for tensor in tensors:
            if tensor.place not in (FIRST, LAST):
                blocks[tensor.place] = blocks.get(tensor.place, 0) + tensor.numbers
        # FSDP's units as the lessons wrap a model: each block, and all the rest in one
        self.blocks = list(blocks.values())
        self.rest = self.numbers - sum(self.blocks)
        self.units = len(self.blocks) + (self.rest > 0)
        self._sharded: dict[tuple, int] = {}

    def sharded(self, layout: Layout, experts: bool, index: int = 0, only_blocks: bool = False) -> int:
        """Numbers of the parts called ``index``, of experts or of the rest: ZeRO shares each by rows."""
        ranks = layout.expert_shards if experts else layout.shards
        key = (ranks, experts, index, only_blocks)
        if key not in self._sharded:
            total = 0
            for tensor in self.tensors:
                if bool(tensor.experts) == experts and not (only_blocks and tensor.place in (FIRST, LAST)):
                    total += shard(tensor, ranks, index)
            self._sharded[key] = total
        return self._sharded[key]


def held_by(model: Model, layout: Layout, position: dict[str, int]) -> Held:
    """What TP, EP and PP leave of the parameters on a rank, before ZeRO."""
    return _held(model, layout.tp, layout.ep, layout.etp, layout.pp, layout.chunks, position["pp"])


@lru_cache(maxsize=512)
def _held(model: Model, tp: int, ep: int, etp: int, pp: int, chunks: int, index: int) -> Held:
    schedule = "interleaved" if chunks > 1 else "1F1B"
    layout = Layout(tp=tp, ep=ep, etp=etp, pp=pp, chunks=chunks, schedule=schedule)
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
            shape = list(tensor.shape)
            if tensor.divided is not None:  # rounded up: a vocabulary is padded
                parts = layout.etp if tensor.experts else layout.tp
                shape[tensor.divided] = math.ceil(shape[tensor.divided] / parts)
            if tensor.experts:
                shape[0] //= layout.ep
            yield replace(tensor, shape=tuple(shape))


def shard(tensor: Tensor, ranks: int, index: int) -> int:
    """Numbers of the part number ``index`` when FSDP2 divides a tensor by rows, as ``chunk`` does."""
    rows = tensor.numbers if tensor.experts else tensor.shape[0]  # there are fewer experts than ranks
    each = math.ceil(rows / ranks)
    return max(0, min(each, rows - each * index)) * tensor.numbers // rows


@dataclass(frozen=True)
class Work:
    """What a rank has to do in a step over so many sequences of all ranks, and what follows from that."""

    model: Model
    layout: Layout
    sequences: int
    position: dict[str, int]

    @property
    def numbers(self) -> Numbers:
        return self.layout.stack.numbers

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

    @cached_property
    def rounds(self) -> int:
        """Micro-batches."""
        return self.layout.micro_batches(self.sequences)

    @property
    def in_flight(self) -> float:
        """Micro-batches whose activations are held when most are."""
        layout = self.layout
        if layout.pp == 1:
            return 1.0
        return at_once(layout.schedule, layout.pp, self.position["pp"], self.rounds, layout.chunks)

    @property
    def tokens_at_once(self) -> float:
        """Of a micro-batch, on this rank; ``tokens`` of all micro-batches."""
        return self.layout.micro_batch * self.model.context / self.layout.cp

    @property
    def tokens(self) -> float:
        return self.sequences / self.layout.readers * self.model.context / self.layout.cp


def work_of(model: Model, layout: Layout, sequences: int, position: dict[str, int] | None = None) -> Work:
    """Of the rank at this position, by default the first."""
    return Work(model, layout, sequences, position or layout.position(0))


def memory_of(model: Model, layout: Layout, sequences: int, position: dict[str, int] | None = None) -> Memory:
    """What a rank holds, by default the first one, which holds most with 1F1B.

    ZeRO 1 and 2 divide one flat tensor, ZeRO 3 each parameter by rows. While ZeRO 2 adds up the gradients of
    several micro-batches, each rank has whole ones.
    """
    work = work_of(model, layout, sequences, position)
    held, numbers = work.held, work.numbers
    parameters = gradients = stepped = held.numbers
    counts = len(held.tensors)
    if layout.zero in (1, 2) and layout.shards > 1:
        stepped = math.ceil(held.dense / layout.shards) + math.ceil(held.experts / layout.expert_shards)
        counts = 1
        gradients = stepped if layout.zero == 2 and work.rounds == 1 else gradients
    if layout.zero == 3:
        index = work.position["cp"] + layout.cp * work.position["dp"]
        of_experts = index * layout.expert_shards // layout.shards  # neighbours along dp have other experts
        shared = held.sharded(layout, False, index) + held.sharded(layout, True, of_experts)
        parameters = gradients = stepped = shared
    return Memory(
        parameters * numbers.parameter,
        gradient_bytes(work, gradients),
        stepped * numbers.optimizer + counts * numbers.per_tensor,
        gathered(work),
        math.ceil(activations(work)),
        math.ceil(working(work)),
    )


def gradient_bytes(work: Work, held: int) -> int:
    """Bytes of gradients on a rank that holds so many between steps, when most are held.

    While FSDP2 puts off a sum over ranks, what waits has the dtype of the reduction: whole gradients, if it
    puts off all (torch 2.15, _fsdp_param.py, ``unsharded_accumulated_grad``), shards if it puts off the sum
    over replicas (_fsdp_param_group.py, ``_partial_reduce_output``). The last micro-batch turns them into
    the shards that stay.
    """
    layout, numbers = work.layout, work.numbers
    waits = layout.zero == 3 and layout.resharding and work.rounds > 1
    if waits and layout.sync == AT_LAST and layout.shards > 1:
        return work.held.numbers * numbers.reduced
    if waits and layout.sync != EACH and layout.replicate > 1:
        return held * max(numbers.gradient, numbers.reduced)
    return held * numbers.gradient


def gathered(work: Work) -> int:
    """Bytes of FSDP's whole units. With resharding these are two blocks, of one of them the gradients before
    and after their conversion, and all that is outside of blocks. Without it they are all parameters, and
    whole gradients if several micro-batches are added up. Those of ``sync`` ``last`` count as gradients."""
    layout, held, numbers = work.layout, work.held, work.numbers
    if layout.zero != 3 or layout.shards == 1:
        return 0
    block = max(held.blocks, default=0)
    if not layout.resharding:
        summed = held.numbers if work.rounds > 1 else block
        return held.numbers * numbers.gathered + summed * numbers.reduced
    if layout.sync == AT_LAST and work.rounds > 1:
        return 3 * block * numbers.gathered + held.rest * numbers.gathered
    in_flight = 3 * numbers.gathered + numbers.reduced
    return block * in_flight + held.rest * (2 * numbers.gathered + numbers.reduced)


def kept_by_block(model: Model, layout: Layout, experts: bool, recompute: str | None = None) -> float:
    """Bytes that a block keeps for backward, for each token that a rank computes.

    A GPT of 2022 comes to 34 h + 5 a s, as Korthikanti et al. count it: ``selective`` drops what attention
    keeps inside, which a fused kernel does not have. ``op`` keeps a block's input and what comes out of
    attention and of every second matrix product, as torchtitan does. ``full`` keeps the input alone.
    """
    recompute = recompute or layout.recompute
    size = layout.stack.numbers.activation
    width = model.width / layout.between
    if recompute == WHOLE:
        return width * size
    attention = _kept_by_attention(model, layout, recompute)
    mlp = _kept_by_mlp(model, layout, experts, recompute)
    if recompute == BY_OP:
        reduced = 2 * width if layout.sequence_parallel else 0.0
        return (width + reduced) * size + attention + mlp
    of_layers = width if layout.stack.regather else model.width  # what comes out of a norm
    masks = 2 * width if model.dropout else 0.0
    return model.norms * (width + of_layers) * size + masks + attention + mlp


def _kept_by_attention(model: Model, layout: Layout, recompute: str) -> float:
    size, tp, latent = layout.stack.numbers.activation, layout.tp, model.latent
    keys = (
        max(model.keys, model.head_width * tp) if latent is None else model.queries
    )  # few heads are repeated
    values = keys if latent is None else model.values
    kept = (model.queries + keys + values + model.values) / tp * size
    inside = 4 * model.heads / tp  # the sum of each row, in float32
    if recompute == BY_OP:
        return kept - values / tp * size + inside
    if latent is not None:
        kept += (2 * (latent.query_rank + latent.key_rank) + latent.rotary) * size
    if layout.stack.attention == UNFUSED:
        each = 2 * size + 1 if model.dropout else size
        inside = 0.0 if recompute == SELECTIVE else each * model.heads * model.context / tp
    return kept + inside


def _kept_by_mlp(model: Model, layout: Layout, experts: bool, recompute: str) -> float:
    """Gate, up and their product, or before and after the activation; with experts also the rows themselves,
    when they come and when they go back."""
    size = layout.stack.numbers.activation
    wide = 3 if model.gated else 2
    outs = 2
    if recompute == BY_OP:
        wide, outs = 1, 1
    if not experts or model.experts is None:
        out = model.width if recompute == BY_OP else 0
        return (wide * model.hidden / layout.tp + out) * size
    kinds = model.experts
    routed = kinds.chosen / layout.between * (outs * model.width + wide * kinds.hidden)
    return (routed + wide * kinds.shared * kinds.hidden / layout.tp) * size


def activations(work: Work) -> float:
    """Bytes that a rank keeps for backward when most micro-batches are in flight."""
    model, layout = work.model, work.layout
    each = {}
    for experts in (False, True):
        all_of_it = kept_by_block(model, layout, experts, NONE)
        each[experts] = all_of_it + layout.recomputed * (kept_by_block(model, layout, experts) - all_of_it)
    total = sum(each[has_experts(model, layer)] for layer in work.blocks)
    if (
        layout.pp > 1 and not layout.stack.regather
    ):  # torch's schedules keep what a stage returns, and buffers
        total += 2 * layout.chunks * model.width / layout.between * work.numbers.activation
    return work.in_flight * total * work.tokens_at_once


def working(work: Work) -> float:
    """The logits, or what backward of one block needs: what it computes again, and gradients on their way."""
    model, layout = work.model, work.layout
    size = work.numbers.activation
    logits = 0.0
    if work.last:
        gathered_input = 2 * model.width * size if layout.sequence_parallel else 0
        parts = 1 if layout.stack.whole_logits else layout.tp
        logits = math.ceil(model.vocabulary / parts) * layout.stack.logits + gathered_input
    experts = any(has_experts(model, layer) for layer in work.blocks)
    again = kept_by_block(model, layout, experts, NONE) - kept_by_block(model, layout, experts)
    flowing = _kept_by_mlp(model, layout, experts, NONE) + 2 * model.width * size
    return max(logits, again + flowing) * work.tokens_at_once
