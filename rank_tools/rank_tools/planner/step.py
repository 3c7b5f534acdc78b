"""Seconds of a step: computing, waiting in the pipeline, and communication that nothing hides.

Computing is the sum of ``ops`` over the blocks of the slowest stage. Communication is ``traffic`` over the
links of ``hardware``; the stack says what of it hides.
"""

import math
from dataclasses import dataclass, fields, replace

from .flops import CONVENTIONS, per_token, utilization
from .hardware import Gpu, Network, seconds
from .layout import EACH, RING, Layout, blocks_of
from .memory import held_by
from .ops import attention, block, head, streamed
from .pipeline import bubble
from .traffic import Counts, traffic_of
from .transformer import Model, has_experts

CONTENTION = 0.3  # a collective that hides behind compute slows it by so much of its own time
SLOWER_PER_DOUBLING = 0.003  # of the number of GPUs, beyond a node


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by what a rank does with them; their sum is ``total``.

    Attributes:
        waiting: in the bubble of the pipeline.
        tp, cp, ep, pp, dp: communication along a dimension that nothing hides; ``dp`` has that of replicas
            and FSDP's copies.
        optimizer: to read and write its state once.
        lost: gaps, and the slowest of many GPUs.
    """

    computing: float
    waiting: float
    tp: float
    cp: float
    ep: float
    pp: float
    dp: float
    optimizer: float
    lost: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))


def step_time(model: Model, layout: Layout, sequences: int, gpu: Gpu, network: Network) -> StepTime:
    """The stage that computes most decides, and in each collective the one that hands in most."""
    stack = layout.stack
    rounds = layout.micro_batches(sequences)
    computing = rounds * max(stage_seconds(model, layout, index, gpu) for index in some_stages(layout))
    by_dimension = communication(model, layout, sequences, gpu, network)
    tp = by_dimension["tp"] * (1 - stack.hidden_tp)
    ep = by_dimension["ep"] * (1 - stack.hidden_ep)
    cp = by_dimension["cp"]
    if (
        layout.cp > 1 and layout.context == RING
    ):  # attention to the keys that are here hides the way of the next
        tokens = layout.micro_batch * model.context / layout.cp
        core = attention(tokens, model, layout, gpu)
        hides = rounds * len(blocks_of(model, layout, 0)) * (core.forward + core.backward)
        cp = exposed(cp, hides)
    busy = computing + tp + cp + ep
    waits = bubble(layout.schedule, layout.pp, rounds, layout.chunks)
    waiting = busy * waits / (1 - waits)
    pp = by_dimension["pp"] * (CONTENTION if layout.chunks > 1 else 1.0)
    # Gathering hides behind the first micro-batch's forward pass, reducing behind the last one's backward;
    # interleaved stages are through with one chunk while the others still compute.
    window = max(1.0, layout.pp * (1 - 1 / layout.chunks)) / rounds
    hides = busy if layout.zero == 3 and layout.resharding else busy * min(1.0, window)
    dp = by_dimension["dp"] + by_dimension["edp"]
    replicas = by_dimension["replicate"]
    if stack.overlap:
        # What the replicas add up once a step hides behind the last micro-batch, as far as shards leave room.
        once = layout.zero != 3 or layout.sync != EACH
        left = max(0.0, hides - dp) * (1 / rounds if once and layout.zero == 3 and layout.resharding else 1.0)
        dp = exposed(dp, hides) + exposed(replicas, left)
    else:
        dp += replicas
    dp += copies(model, layout, rounds, gpu)
    time = StepTime(computing, waiting, tp, cp, ep, pp, dp, optimizer_seconds(model, layout, gpu))
    lost = stack.gaps + SLOWER_PER_DOUBLING * max(0.0, math.log2(layout.ranks / 8))
    return replace(time, lost=lost * time.total)


def exposed(collective: float, compute: float) -> float:
    """What a collective costs that may hide behind so much compute."""
    hidden = min(collective, compute)
    return collective - hidden + CONTENTION * hidden


def some_stages(layout: Layout) -> list[int]:
    """Ranks along pp that differ: the first, one between and the last."""
    return sorted({0, layout.pp // 2, layout.pp - 1})


def stage_seconds(model: Model, layout: Layout, index: int, gpu: Gpu) -> float:
    """Of one micro-batch, forward and backward, on the rank with this index along pp."""
    total = 0.0
    same = replace(layout, pp=1, dp=1, replicate=1, chunks=1, schedule="1F1B", zero=0, resharding=True)
    layers = blocks_of(model, layout, index)
    for experts in (False, True):
        count = sum(has_experts(model, layer) == experts for layer in layers)
        if count:
            total += count * sum(block(model, same, gpu, experts))
    if index == layout.pp - 1:
        total += sum(head(model, same, gpu))
    return total


def optimizer_seconds(model: Model, layout: Layout, gpu: Gpu) -> float:
    """To read and write parameters, gradients and Adam's state."""
    numbers = layout.stack.numbers
    touched = 2 * numbers.optimizer + numbers.gradient + 2 * numbers.parameter
    held = held_by(model, layout, layout.position(0))
    return streamed(held.numbers / (layout.shards if layout.zero else 1) * touched, gpu)


def copies(model: Model, layout: Layout, rounds: int, gpu: Gpu) -> float:
    """FSDP copies gathered shards into whole tensors, and whole gradients into what is divided."""
    if layout.zero != 3:
        return 0.0
    numbers = layout.stack.numbers
    times, gathers = (rounds, 2) if layout.resharding else (1, 1)
    size = (2 * gathers + 1) * numbers.gathered + numbers.reduced
    return streamed(times * held_by(model, layout, layout.position(0)).numbers * size, gpu)


def most_traffic(model: Model, layout: Layout, sequences: int) -> Counts:
    """Of some stages the one that hands in most, collective by collective."""
    largest: Counts = {}
    for index in some_stages(layout):
        position = {**layout.position(0), "pp": index}
        for key, counts in traffic_of(model, layout, sequences, position).items():
            largest[key] = max(largest.get(key, counts), counts, key=lambda pair: pair[1])
    return largest


def communication(
    model: Model, layout: Layout, sequences: int, gpu: Gpu, network: Network
) -> dict[str, float]:
    """Seconds along each dimension, if nothing hid them. What is received was sent by somebody."""
    by_dimension = dict.fromkeys(("tp", "cp", "ep", "pp", "dp", "edp", "replicate"), 0.0)
    for (dimension, op), (calls, size) in most_traffic(model, layout, sequences).items():
        if op != "recv":
            group, near = layout.group(dimension, network.node)
            by_dimension[dimension] += seconds(op, group, near, calls, size, gpu, network)
    return by_dimension


def tokens_per_s(model: Model, sequences: int, seconds_of_step: float) -> float:
    """Of all ranks together."""
    return sequences * model.context / seconds_of_step


def shares_of_peak(model: Model, layout: Layout, sequences: int, time: float, gpu: Gpu) -> dict[str, float]:
    """{convention: MFU} of a step that takes ``time`` seconds, of the peak in bfloat16."""
    tokens = tokens_per_s(model, sequences, time) / layout.ranks
    return {
        convention.name: utilization(per_token(model, convention), tokens, gpu.peak)
        for convention in CONVENTIONS
    }
