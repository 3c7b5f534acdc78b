"""Exercise 28: the seconds of a step, by hand; then spend a budget."""

from dataclasses import replace

from shared.planner import CAUSAL, Gpu, Layout, Model, Network, Plan, Training, per_token, propose


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
    raise NotImplementedError  # your turn: replace this line


def spend(training: Training, most_gpus: int, dollars: float) -> tuple[int, Plan]:
    """Return the number of GPUs and the plan with which the training ends soonest, for so many dollars.

    Args:
        training: all but the number of GPUs: ``replace(training, gpus=64)`` asks about 64.
        most_gpus: so many can be had. Take 8 times a power of two.
        dollars: of the whole training, failures included.
    """
    raise NotImplementedError  # your turn: replace this line
