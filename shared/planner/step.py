"""Seconds of a step: computing, waiting in the pipeline, and communication that nothing hides.

The one number that is fitted is ``reached``: the share of a GPU's peak that its matrix products get. All
else follows from layout, bytes and bandwidths. Left out are the optimizer's own time, reading of data, and
ranks that are slower than others.
"""

from dataclasses import dataclass

from .flops import CAUSAL, CONVENTIONS, SELECTIVE, per_token, utilization
from .hardware import Gpu, Network, seconds
from .layout import RING, Layout, blocks_of
from .memory import MIXED, Numbers
from .models import Model
from .pipeline import bubble
from .traffic import Traffic, traffic_of

REACHED = 0.54  # fitted to one figure: Llama 3 405B on 8,192 GPUs, 430 TFLOP/s each


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by what a rank does with them; their sum is ``total``.

    Attributes:
        waiting: in the bubble of the pipeline.
        tp, cp, ep, pp, dp: communication along a dimension that nothing hides; ``dp`` has that of replicas.
    """

    computing: float
    waiting: float
    tp: float
    cp: float
    ep: float
    pp: float
    dp: float

    @property
    def total(self) -> float:
        return self.computing + self.waiting + self.tp + self.cp + self.ep + self.pp + self.dp


def step_time(
    model: Model,
    layout: Layout,
    sequences: int,
    gpu: Gpu,
    network: Network,
    reached: float = REACHED,
    numbers: Numbers = MIXED,
) -> StepTime:
    """The rank that computes most decides, and in each collective the one that hands in most."""
    rounds = layout.micro_batches(sequences)
    operations = slowest_share(model, layout) * _operations(model, layout)
    operations *= layout.micro_batch * model.context / (layout.cp * layout.tp)
    computing = rounds * operations / (gpu.peak * reached)
    by_dimension = _communication(model, layout, sequences, gpu, network, numbers)
    tp, ep = by_dimension["tp"], by_dimension["ep"]
    cp = by_dimension["cp"]
    if layout.context == RING:  # attention to the keys that are here hides the way of the next
        share = 1 - 6 * model.active_parameters() / per_token(model, CAUSAL)
        cp = max(0.0, cp - max(0.0, share) * computing)
    waits = bubble(layout.schedule, layout.pp, rounds, layout.chunks)
    busy = computing + tp + cp + ep
    waiting = busy * waits / (1 - waits)
    # Gathering hides behind the first micro-batch's forward pass, reducing behind the last one's backward.
    hides = busy if layout.zero == 3 and layout.resharding else busy / rounds
    dp = max(0.0, by_dimension["dp"] + by_dimension["replicate"] - hides)
    filling = by_dimension["pp"] / rounds * (layout.pp - 1) if layout.pp > 1 else 0.0
    return StepTime(computing, waiting, tp, cp, ep, filling, dp)


def _operations(model: Model, layout: Layout) -> float:
    """Of the hardware, per token. A fused attention repeats nothing for ``selective``."""
    if model.gated and layout.recompute == SELECTIVE:
        return per_token(model, CAUSAL)
    return per_token(model, CAUSAL, layout.recompute)


def slowest_share(model: Model, layout: Layout) -> float:
    """The largest share of the operations that a rank of the pipeline has; the head counts as its part."""
    parameters = model.active_parameters() - model.embedding()
    head = model.vocabulary * model.width / parameters
    shares = []
    for index in range(layout.pp):
        share = len(blocks_of(model, layout, index)) / model.layers * (1 - head)
        shares.append(share + head if index == layout.pp - 1 else share)
    return max(shares)


def most_traffic(model: Model, layout: Layout, sequences: int, numbers: Numbers = MIXED) -> Traffic:
    """Of the first, a middle and the last stage the one that hands in most, collective by collective."""
    found: Traffic = {}
    for index in sorted({0, layout.pp // 2, layout.pp - 1}):
        position = {**layout.position(0), "pp": index}
        for key, counts in traffic_of(model, layout, sequences, numbers, position).items():
            found[key] = max(found.get(key, counts), counts, key=lambda pair: pair[1])
    return found


def _communication(
    model: Model, layout: Layout, sequences: int, gpu: Gpu, network: Network, numbers: Numbers
) -> dict[str, float]:
    """Seconds along each dimension, if nothing hid them. What is received was sent by somebody."""
    found = dict.fromkeys(("tp", "cp", "ep", "pp", "dp", "replicate"), 0.0)
    for (dimension, op), (calls, size) in most_traffic(model, layout, sequences, numbers).items():
        if op == "recv":
            continue
        group, step = getattr(layout, dimension), layout.step_of(dimension)
        time = seconds(op, group, step, calls, size, gpu, network)
        hidden_with_dp = op == "all_reduce" and dimension in ("cp", "ep")  # these are gradients
        found["dp" if hidden_with_dp else dimension] += time
    return found


def tokens_per_s(model: Model, sequences: int, seconds_of_step: float) -> float:
    """Of all ranks together."""
    return sequences * model.context / seconds_of_step


def shares_of_peak(
    model: Model, layout: Layout, sequences: int, time: float, gpu: Gpu
) -> dict[str, tuple[float, float]]:
    """{convention: (MFU, HFU)} of a step that takes ``time`` seconds."""
    tokens = tokens_per_s(model, sequences, time) / layout.ranks
    found = {}
    for convention in CONVENTIONS:
        model_flops = utilization(per_token(model, convention), tokens, gpu.peak)
        hardware_flops = utilization(per_token(model, convention, layout.recompute), tokens, gpu.peak)
        found[convention.name] = (model_flops, hardware_flops)
    return found
