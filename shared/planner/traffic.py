"""Calls and bytes of each collective along each dimension of the mesh, in one step of one rank.

Bytes are what the rank hands in, as ``shared.comm.record`` counts them; ``hardware.by_rule`` makes of them
what it has to send.
"""

import math

from .layout import GATHER, RING, Layout
from .memory import MIXED, Held, Numbers, Work, work_of
from .models import Model

Traffic = dict[tuple[str, str], tuple[int, int]]  # {(dimension, collective): (calls, bytes handed in)}
FIRST_BUCKET = 2**20  # bytes at which DDP closes its first bucket; the next ones take 25 times as many


def traffic_of(
    model: Model,
    layout: Layout,
    sequences: int,
    numbers: Numbers = MIXED,
    position: dict[str, int] | None = None,
) -> Traffic:
    """What a rank, by default the first, calls in a step over so many sequences of all ranks together."""
    work = work_of(model, layout, sequences, numbers, position)
    found: Traffic = {}
    for add in (_add_data, _add_tensor, _add_pipeline, _add_context, _add_experts):
        add(found, work)
    return {key: (calls, size) for key, (calls, size) in found.items() if calls}


def _add(found: Traffic, dimension: str, op: str, calls: int, size: float) -> None:
    before_calls, before_size = found.get((dimension, op), (0, 0))
    found[dimension, op] = (before_calls + calls, before_size + round(size))


def buckets(held: Held, numbers: Numbers) -> int:
    """How many all-reduces DDP makes of the gradients: it fills buckets from the last parameter on."""
    limit = FIRST_BUCKET
    filled = 0
    count = 0
    for tensor in reversed(held.tensors):
        filled += tensor.numbers * numbers.parameter
        if filled >= limit:
            count += 1
            filled = 0
            limit = 25 * FIRST_BUCKET
    return count + (filled > 0)


def _add_data(found: Traffic, work: Work) -> None:
    layout, held, numbers = work.layout, work.held, work.numbers
    tensors = len(held.tensors)
    if layout.zero == 0:
        calls = tensors if layout.by_tensor else buckets(held, numbers)
        for name in ("dp", "replicate"):
            if getattr(layout, name) > 1:
                _add(found, name, "all_reduce", calls, held.numbers * numbers.gradient)
    elif layout.zero == 3:
        _add_sharded(found, work)
    elif layout.dp > 1:
        calls = tensors if layout.by_tensor else 1
        whole = (
            held.padded(layout.dp) if layout.by_tensor else math.ceil(held.numbers / layout.dp) * layout.dp
        )
        _add(found, "dp", "reduce_scatter", calls, whole * numbers.gradient)
        _add(found, "dp", "all_gather", calls, whole // layout.dp * numbers.parameter)


def _add_sharded(found: Traffic, work: Work) -> None:
    """FSDP2. With resharding, each micro-batch gathers a block for forward and again for backward."""
    layout, held, numbers = work.layout, work.held, work.numbers
    rounds = work.rounds if layout.resharding else 1
    padded = held.sharded(layout.dp, 0)
    units = held.units
    again = layout.resharding
    gathers = units + (len(held.blocks) if again else 0)
    gathered = padded + (held.sharded(layout.dp, 0, only_blocks=True) if again else 0)
    if layout.dp > 1:
        _add(found, "dp", "all_gather", rounds * gathers, rounds * gathered * numbers.parameter)
        scattered = padded * layout.dp * numbers.gradient
        _add(found, "dp", "reduce_scatter", rounds * units, rounds * scattered)
    if layout.replicate > 1:
        _add(found, "replicate", "all_reduce", rounds * units, rounds * padded * numbers.gradient)


def _add_tensor(found: Traffic, work: Work) -> None:
    """Two all-reduces in each block and direction, one for the embedding, one for the head, 3 for the loss.

    With sequence parallelism each becomes a reduce-scatter and an all-gather, the one in forward, the other
    in backward at the same place, and one more all-reduce adds up the gradients of what is not divided.
    """
    layout, numbers, rounds, tokens = work.layout, work.numbers, work.rounds, work.tokens
    if layout.tp == 1:
        return
    of_activations = 4 * len(work.blocks) + work.first + work.last
    size = tokens * work.model.width * numbers.activation
    if layout.sequence_parallel:
        _add(found, "tp", "reduce_scatter", rounds * of_activations, of_activations * size)
        _add(found, "tp", "all_gather", rounds * of_activations, of_activations * size / layout.tp)
        _add(found, "tp", "all_reduce", 1, work.held.undivided * numbers.gradient)
    else:
        _add(found, "tp", "all_reduce", rounds * of_activations, of_activations * size)
    if work.last:
        # The largest logit of each token, and two sums, which are taken in float32 at least.
        _add(found, "tp", "all_reduce", rounds, tokens * numbers.activation)
        _add(found, "tp", "all_reduce", 2 * rounds, 2 * tokens * max(4, numbers.activation))


def _add_pipeline(found: Traffic, work: Work) -> None:
    """Activations at each border forward, their gradients backward; the tied weight's gradients are added."""
    model, layout, numbers = work.model, work.layout, work.numbers
    if layout.pp == 1:
        return
    borders = 2 * layout.chunks - work.first - work.last
    between = layout.tp if layout.sequence_parallel else 1
    size = work.tokens * model.width * numbers.activation / between
    calls = borders * work.rounds
    _add(found, "pp", "send", calls, borders * size)
    _add(found, "pp", "recv", calls, borders * size)
    if model.tied and (work.first or work.last):
        weight = next(model.tensors())
        rows = weight.shape[0] // layout.tp
        if layout.zero == 3:
            rows = max(0, min(math.ceil(rows / layout.dp), rows))
        _add(found, "pp", "all_reduce", 1, rows * weight.shape[1] * numbers.gradient)


def _add_context(found: Traffic, work: Work) -> None:
    model, layout, numbers = work.model, work.layout, work.numbers
    if layout.cp == 1:
        return
    layers, rounds, tokens = len(work.blocks), work.rounds, work.tokens
    keys = 2 * tokens * model.kv_heads * model.head_width / layout.tp * numbers.activation
    queries = tokens * model.heads * model.head_width / layout.tp * numbers.activation
    if layout.context == RING:
        messages = 3 * (layout.cp - 1) * layers  # keys and values forward and backward, and their gradients
        _add(found, "cp", "send", messages * rounds, messages * keys)
        _add(found, "cp", "recv", messages * rounds, messages * keys)
    elif layout.context == GATHER:
        _add(found, "cp", "all_gather", 2 * layers * rounds, 2 * layers * keys)
        _add(found, "cp", "reduce_scatter", layers * rounds, layers * keys * layout.cp)
    else:
        _add(found, "cp", "all_to_all", 4 * layers * rounds, layers * 2 * (2 * queries + keys))
    # With ZeRO, dp and cp are one group for parameters and gradients; here they are two.
    size = work.held.numbers * numbers.gradient
    if layout.zero == 3:
        size = work.held.sharded(layout.dp, work.position["dp"]) * numbers.gradient
    _add(found, "cp", "all_reduce", 1, size)


def _add_experts(found: Traffic, work: Work) -> None:
    """The mean over the ranks: counts, rows to the experts and back, and their gradients."""
    model, layout, numbers = work.model, work.layout, work.numbers
    experts = model.experts
    if layout.ep == 1 or experts is None:
        return
    layers = sum(layer >= experts.dense_layers for layer in work.blocks)
    rows = experts.chosen * work.tokens * model.width * numbers.activation
    counts = 8 * experts.routed * work.rounds
    _add(found, "ep", "all_to_all", 5 * layers * work.rounds, layers * (counts + 4 * rows))
    _add(found, "ep", "all_reduce", 1, work.held.dense * numbers.gradient)
