"""Exercise 28: the seconds of a step, by hand; then spend a budget."""

from dataclasses import replace

from rank_tools.planner import CAUSAL, Gpu, Layout, Model, Network, Plan, Training, per_token, propose


def gather_seconds(size: float, ranks: int, near: int, gpu: Gpu, network: Network) -> float:
    """Seconds until ``ranks`` ranks, of which ``near`` share a node, have the same ``size`` bytes."""
    nodes = ranks / near
    inside = size * (near - 1) / near / gpu.link
    between = size * (nodes - 1) / nodes / (near * network.card)
    return max(inside, between)


def step_seconds(model: Model, layout: Layout, sequences: int, gpu: Gpu, network: Network) -> float:
    """Return the seconds of a step as the formulas of this lesson have them.

    * Compute: ``per_token(model, CAUSAL)`` operations for each token, at ``gpu.peak * gpu.gemm`` a rank.
    * TP: in each block of this rank, ten times, as in Megatron, its tokens x width in bfloat16, each a
      ``gather_seconds`` of TP ranks in one node. The rank has ``model.layers`` / PP blocks. Nothing hides.
    * The bubble: the rank waits (PP - 1) / VPP times as long as compute and TP take for one micro-batch.
    * DP: six bytes of each parameter of this rank's part, which is 1 / (TP x PP) of all. It is one
      ``gather_seconds`` of DP ranks. It hides behind compute and TP of one micro-batch; only what is left
      counts. Ranks are counted along TP first, then along DP, ``network.node`` of them to a node.

    ``layout`` has tp, pp, dp and chunks, which is VPP, and ``layout.micro_batches(sequences)``.
    """
    # solution: begin
    tokens = sequences * model.context / layout.dp
    computing = per_token(model, CAUSAL) * tokens / (layout.tp * layout.pp) / (gpu.peak * gpu.gemm)
    rows = tokens * model.width * 2
    over_tp = 10 * gather_seconds(rows, layout.tp, layout.tp, gpu, network) * model.layers / layout.pp
    busy = computing + over_tp
    micro_batch = busy / layout.micro_batches(sequences)
    waiting = micro_batch * (layout.pp - 1) / layout.chunks
    part = model.parameters() / (layout.tp * layout.pp)
    near = min(layout.dp, network.node // layout.tp)
    reducing = gather_seconds(6 * part, layout.dp, near, gpu, network)
    return busy + waiting + max(0.0, reducing - micro_batch)
    # solution: end


def spend(training: Training, most_gpus: int, dollars: float) -> tuple[int, Plan]:
    """Return the number of GPUs and the plan with which the training ends soonest, for so many dollars.

    A plan that is ``tight`` does not count.

    Args:
        training: all but the number of GPUs: ``replace(training, gpus=64)`` asks about 64.
        most_gpus: the upper limit. Try 8, 16, 32 and so on up to it.
        dollars: of the whole training, failures included. Enough for at least one plan.
    """
    # solution: begin
    affordable: list[tuple[float, int, Plan]] = []
    gpus = 8
    while gpus <= most_gpus:
        plans, _ = propose(replace(training, gpus=gpus))
        roomy = [plan for plan in plans if not plan.tight]
        affordable += [(plan.days, gpus, plan) for plan in roomy if plan.dollars <= dollars]
        gpus *= 2
    _, gpus, plan = min(affordable, key=lambda option: option[0])
    return gpus, plan
    # solution: end
