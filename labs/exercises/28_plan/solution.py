"""Exercise 28: the seconds of a step, by hand; then spend a budget."""

from dataclasses import replace

from rank_tools.planner import CAUSAL, Gpu, Layout, Model, Network, Plan, Training, per_token, propose


def step_seconds(model: Model, layout: Layout, sequences: int, gpu: Gpu, network: Network) -> float:
    """Return the seconds of a step as the formulas of this lesson have them.

    * Compute: ``per_token(model, CAUSAL)`` operations for each token, at ``gpu.peak * gpu.gemm`` a rank.
    * TP: in each block of this rank, ten times (TP - 1) / TP of its tokens x width in bfloat16, over
      ``gpu.link``. It has ``model.layers`` / PP blocks. Nothing of it is hidden.
    * The bubble: the rank waits (PP - 1) / VPP times as long as compute and TP take for one micro-batch.
    * DP: this rank's part of the parameters (1 / (TP x PP)), six bytes of each, (DP - 1) / DP of it sent over
      ``network.card``. It hides behind compute and TP of one micro-batch; only what is left counts.

    ``layout`` has tp, pp, dp and chunks, which is VPP, and ``layout.micro_batches(sequences)``.
    """
    # solution: begin
    tokens = sequences * model.context
    computing = per_token(model, CAUSAL) * tokens / layout.ranks / (gpu.peak * gpu.gemm)
    sent = 10 * (layout.tp - 1) / layout.tp * (tokens / layout.dp) * model.width * 2
    busy = computing + sent * model.layers / layout.pp / gpu.link
    micro_batch = busy / layout.micro_batches(sequences)
    waiting = micro_batch * (layout.pp - 1) / layout.chunks
    part = model.parameters() / (layout.tp * layout.pp)
    reducing = 6 * part * (layout.dp - 1) / layout.dp / network.card
    return busy + waiting + max(0.0, reducing - micro_batch)
    # solution: end


def spend(training: Training, most_gpus: int, dollars: float) -> tuple[int, Plan]:
    """Return the number of GPUs and the plan with which the training ends soonest, for so many dollars.

    Args:
        training: all but the number of GPUs: ``replace(training, gpus=64)`` asks about 64.
        most_gpus: so many can be had. Take 8 times a power of two.
        dollars: of the whole training, failures included.
    """
    # solution: begin
    affordable: list[tuple[float, int, Plan]] = []
    gpus = 8
    while gpus <= most_gpus:
        plans, _ = propose(replace(training, gpus=gpus))
        affordable += [(plan.days, gpus, plan) for plan in plans if plan.dollars <= dollars]
        gpus *= 2
    _, gpus, plan = min(affordable, key=lambda option: option[0])
    return gpus, plan
    # solution: end
