"""Calls and bytes of each collective along each dimension of the mesh, in one step of one rank.

Bytes are what the rank hands in; ``hardware.by_rule`` makes of them what it has to send.
"""

import math

from .flops import BY_OP, WHOLE
from .layout import EACH, GATHER, LAST, RING, Layout
from .memory import Held, Work, work_of
from .transformer import Model, has_experts

# {(dimension, collective): (calls, bytes handed in)}; "dp" is dp x cp where ZeRO divides among both
Counts = dict[tuple[str, str], tuple[int, int]]
DDP_BUCKETS = (2**20, 25 * 2**20)  # bytes that fill DDP's first bucket, and each of the next ones


def traffic_of(
    model: Model, layout: Layout, sequences: int, position: dict[str, int] | None = None
) -> Counts:
    """What a rank, by default the first, calls in a step over so many sequences of all ranks together."""
    work = work_of(model, layout, sequences, position)
    counts: Counts = {}
    for add in (_add_data, _add_tensor, _add_pipeline, _add_context, _add_experts):
        add(counts, work)
    return {key: (calls, size) for key, (calls, size) in counts.items() if calls}


def _add(counts: Counts, dimension: str, op: str, calls: int, size: float) -> None:
    before_calls, before_size = counts.get((dimension, op), (0, 0))
    counts[dimension, op] = (before_calls + calls, before_size + round(size))


def buckets(held: Held, size: int) -> int:
    """How many all-reduces DDP makes of gradients of so many bytes each, from the last parameter on."""
    limit = DDP_BUCKETS[0]
    filled = 0
    count = 0
    for tensor in reversed(held.tensors):
        filled += tensor.numbers * size
        if filled >= limit:
            count += 1
            filled = 0
            limit = DDP_BUCKETS[1]
    return count + (filled > 0)


def _add_data(counts: Counts, work: Work) -> None:
    layout, held, numbers = work.layout, work.held, work.numbers
    gathered = 1 if layout.stack.fp8 else numbers.gathered
    groups = (("dp", layout.shards, held.dense), ("edp", layout.expert_shards, held.experts))
    if layout.zero == 3:
        _add_sharded(counts, work, gathered)
    elif layout.zero == 0:
        flat = layout.ep > 1 or layout.dp == 1  # there DDP is not what people use
        calls = 1 if flat else buckets(held, numbers.parameter)
        for name in ("dp" if layout.dp > 1 else "cp", "replicate"):
            if getattr(layout, name) > 1:
                _add(counts, name, "all_reduce", calls, held.dense * numbers.reduced)
        if held.experts and layout.expert_shards > 1:
            _add(counts, "edp", "all_reduce", 1, held.experts * numbers.reduced)
    else:
        for name, shards, count in groups:
            if shards > 1 and count:
                part = math.ceil(count / shards)
                _add(counts, name, "reduce_scatter", 1, part * shards * numbers.reduced)
                _add(counts, name, "all_gather", 1, part * gathered)
        if layout.replicate > 1:
            _add(counts, "replicate", "all_reduce", 1, held.numbers / layout.shards * numbers.reduced)


def _add_sharded(counts: Counts, work: Work, gathered: int) -> None:
    """FSDP2: experts among the ranks that hold the same ones, all else among dp x cp.

    With resharding, each micro-batch gathers a block for forward and again for backward. Over the replicas
    gradients are added up once a step, unless ``sync`` says ``each``.
    """
    layout, held, numbers = work.layout, work.held, work.numbers
    rounds, again = (work.rounds, True) if layout.resharding else (1, False)
    sums = 1 if layout.sync == LAST else rounds
    sums_of_replicas = sums if layout.sync == EACH else 1
    with_experts = sum(has_experts(work.model, layer) for layer in work.blocks)
    for experts, name, ranks, blocks, units in (
        (False, "dp", layout.shards, len(held.blocks), held.units),
        (True, "edp", layout.expert_shards, with_experts, with_experts),
    ):
        padded = held.sharded(layout, experts)
        gathers = units + (blocks if again else 0)
        handed_in = padded + (held.sharded(layout, experts, only_blocks=True) if again else 0)
        if ranks > 1 and padded:
            _add(counts, name, "all_gather", rounds * gathers, rounds * handed_in * gathered)
            _add(counts, name, "reduce_scatter", sums * units, sums * padded * ranks * numbers.reduced)
        if layout.replicate > 1 and padded:
            size = sums_of_replicas * padded * numbers.reduced
            _add(counts, "replicate", "all_reduce", sums_of_replicas * units, size)


def _add_tensor(counts: Counts, work: Work) -> None:
    """Two all-reduces in each block and direction, one for the embedding, one for the head, 3 for the loss.

    With sequence parallelism each becomes a reduce-scatter and an all-gather, the one in forward, the other
    in backward at the same place, and one more all-reduce adds up the gradients of what is not divided.
    Megatron gathers the input of two layers in each block once more for backward, where torch has kept it.
    Full recomputation repeats those of forward; torch stops before the last one, whose result nobody needs.
    """
    layout, numbers, rounds, tokens = work.layout, work.numbers, work.rounds, work.tokens
    if layout.tp == 1:
        return
    blocks = len(work.blocks)
    again = 2 * round(layout.recomputed * blocks) if layout.recompute == WHOLE else 0
    calls = 4 * blocks + work.first + work.last
    sums = calls + (again if layout.stack.regather else again // 2)
    size = tokens * work.model.width * numbers.activation
    if layout.sequence_parallel:
        gathers = calls + again
        if layout.recompute == BY_OP:
            gathers += 2 * round(layout.recomputed * blocks)
        if layout.stack.regather:
            gathers += 2 * blocks + work.last
        _add(counts, "tp", "reduce_scatter", rounds * sums, sums * size)
        _add(counts, "tp", "all_gather", rounds * gathers, gathers * size / layout.tp)
        # What is not divided, by hand in one flat tensor; FSDP2 sums up each by itself.
        norms = work.held.whole_tensors if layout.zero == 3 else 1
        _add(counts, "tp", "all_reduce", norms, work.held.undivided * numbers.reduced)
    else:
        _add(counts, "tp", "all_reduce", rounds * sums, sums * size)
    if work.last and layout.stack.whole_logits:
        part = math.ceil(work.model.vocabulary / layout.tp)
        _add(counts, "tp", "all_gather", rounds, tokens * part * numbers.activation)
    elif work.last:
        # The largest logit of each token, and two sums, in float32 at least.
        _add(counts, "tp", "all_reduce", 3 * rounds, 3 * tokens * max(4, numbers.activation))


def _add_pipeline(counts: Counts, work: Work) -> None:
    """Activations at each border forward, their gradients backward; the tied weight's gradients are added."""
    model, layout, numbers = work.model, work.layout, work.numbers
    if layout.pp == 1:
        return
    borders = 2 * layout.chunks - work.first - work.last
    parts = layout.tp if layout.stack.regather else layout.between  # Megatron sends a part and gathers it
    size = work.tokens * model.width * numbers.activation / parts
    calls = borders * work.rounds
    _add(counts, "pp", "send", calls, borders * size)
    _add(counts, "pp", "recv", calls, borders * size)
    if model.tied and (work.first or work.last):
        weight = next(model.tensors())
        rows = weight.shape[0] // layout.tp
        if layout.zero == 3:
            rows = math.ceil(rows / layout.shards)
        _add(counts, "pp", "all_reduce", 1, rows * weight.shape[1] * numbers.gradient)


def _add_context(counts: Counts, work: Work) -> None:
    """Full recomputation sends forward's messages once more (lesson 20); one that keeps attention's output
    does not, and gathered keys are gathered once more for backward in any case."""
    model, layout, numbers = work.model, work.layout, work.numbers
    if layout.cp == 1:
        return
    layers, rounds, tokens = len(work.blocks), work.rounds, work.tokens
    keys = 2 * tokens * max(model.keys / layout.tp, model.head_width) * numbers.activation
    queries = tokens * model.queries / layout.tp * numbers.activation
    again = round(layout.recomputed * layers) if layout.recompute == WHOLE else 0
    if layout.context == RING:
        # Keys and values forward and backward, and their gradients.
        messages = (3 * layers + again) * (layout.cp - 1)
        _add(counts, "cp", "send", messages * rounds, messages * keys)
        _add(counts, "cp", "recv", messages * rounds, messages * keys)
    elif layout.context == GATHER:
        _add(counts, "cp", "all_gather", 2 * layers * rounds, 2 * layers * keys)
        _add(counts, "cp", "reduce_scatter", layers * rounds, layers * keys * layout.cp)
    else:
        passes = 2 * layers + again
        _add(counts, "cp", "all_to_all", 2 * passes * rounds, passes * (2 * queries + keys))


def _add_experts(counts: Counts, work: Work) -> None:
    """The mean over the ranks: counts, and rows to the experts and back, forward and backward."""
    model, layout, numbers = work.model, work.layout, work.numbers
    experts = model.experts
    if layout.ep * layout.etp == 1 or experts is None:
        return
    layers = sum(has_experts(model, layer) for layer in work.blocks)
    times = 4 + (2 * layout.recomputed if layout.recompute == WHOLE else 0)
    rows = experts.chosen * work.tokens / layout.between * model.width * numbers.activation
    row_counts = 8 * experts.routed * work.rounds
    # Counts are exchanged again, too: of five exchanges full recomputation makes eight.
    of_counts = 1 + (layout.recomputed if layout.recompute == WHOLE else 0)
    calls = round((times + of_counts) * layers) * work.rounds
    _add(counts, "ep", "all_to_all", calls, layers * (of_counts * row_counts + times * rows))
