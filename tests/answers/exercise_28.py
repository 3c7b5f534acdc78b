"""Answers to exercise 28; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Counts the embedding, which is looked up, and none of attention.",
        "compute alone",
        ("per_token(model, CAUSAL) * tokens", "6 * model.parameters() * tokens"),
    ),
    wrong(
        "Forgets that two inputs are gathered once more for backward.",
        "tensor parallelism, TP 8",
        ("10 * (layout.tp", "8 * (layout.tp"),
    ),
    wrong(
        "Waits as long as without interleaved stages.",
        "interleaved stages",
        (" / layout.chunks", ""),
    ),
    wrong(
        "Hides data parallelism behind the whole step.",
        "data parallelism with few micro-batches",
        ("max(0.0, reducing - micro_batch)", "max(0.0, reducing - busy)"),
    ),
    wrong(
        "Adds what hides.",
        "data parallelism that hides",
        ("max(0.0, reducing - micro_batch)", "reducing"),
    ),
    wrong(
        "Takes all GPUs, whatever they cost.",
        "Llama 2 13B: 256 GPUs cost",
        (" if plan.dollars <= dollars", ""),
    ),
    wrong(
        "Takes what is cheapest.",
        "dollars pay for",
        ("affordable, key=lambda option: option[0]", "affordable, key=lambda option: option[2].dollars"),
    ),
    wrong(
        "Takes one node.",
        "it takes 133.6 days",
        ("gpus <= most_gpus", "gpus <= 8"),
    ),
    wrong(
        "Returns the layout alone.",
        "expected a number of GPUs and a Plan, not Layout",
        ("    return gpus, plan\n", "    return plan.layout\n"),
    ),
    right(
        "From the most GPUs down; it stops at the first that can be paid for.",
        spend="""
        gpus = most_gpus
        while True:
            plans, _ = propose(replace(training, gpus=gpus))
            affordable = [one for one in plans if one.dollars <= dollars]
            if affordable:
                return gpus, min(affordable, key=lambda plan: plan.days)
            gpus //= 2
        """,
    ),
]
