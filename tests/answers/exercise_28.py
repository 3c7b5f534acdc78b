"""Answers to exercise 28."""

from tests.planted import Right, Wrong, solved

SPEND = solved("28_plan", "spend")

ANSWERS = [
    Wrong(
        what="Forgets that two inputs are gathered once more for backward.",
        old="10 * (layout.tp",
        new="8 * (layout.tp",
        told="tensor parallelism, TP 8",
    ),
    Wrong(
        what="Hides data parallelism behind the whole step.",
        old="max(0.0, reducing - micro_batch)",
        new="max(0.0, reducing - busy)",
        told="data parallelism with few micro-batches",
    ),
    Wrong(
        what="Takes all GPUs, whatever they cost.",
        old=" if plan.dollars <= dollars",
        new="",
        told="Llama 2 13B: 256 GPUs cost",
    ),
    Wrong(
        what="Takes what is cheapest.",
        old="affordable, key=lambda option: option[0]",
        new="affordable, key=lambda option: option[2].dollars",
        told="dollars pay for",
    ),
    Wrong(
        what="Returns the layout alone.",
        old="    return gpus, plan\n",
        new="    return plan.layout\n",
        told="expected a number of GPUs and a Plan, not Layout",
    ),
    Right(
        what="From the most GPUs down; it stops at the first that can be paid for.",
        old=SPEND,
        new="""
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
