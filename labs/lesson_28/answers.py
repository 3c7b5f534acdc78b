"""Answers to exercise 28."""

from tests.planted import Right, Wrong, solved

SPEND = solved("28_plan", "spend")

ANSWERS = [
    Wrong(
        what="Forgets that two inputs are gathered once more for backward.",
        old="10 * gather_seconds",
        new="8 * gather_seconds",
        told="tensor parallelism, TP 8",
    ),
    Wrong(
        what="Hides data parallelism behind the whole step.",
        old="max(0.0, reducing - micro_batch)",
        new="max(0.0, reducing - busy)",
        told="data parallelism with few micro-batches",
    ),
    Wrong(
        what="Lets each rank bring in all bytes through its own card.",
        old="near = min(layout.dp, network.node // layout.tp)",
        new="near = 1",
        told="two ranks of a DP group in a node",
    ),
    Wrong(
        what="Takes all GPUs, whatever they cost.",
        old=" if plan.dollars <= dollars",
        new="",
        told="Llama 3 70B: 256 GPUs cost",
    ),
    Wrong(
        what="Takes what is cheapest.",
        old="affordable, key=lambda option: option[0]",
        new="affordable, key=lambda option: option[2].dollars",
        told="dollars pay for",
    ),
    Wrong(
        what="Looks at the first plan of each number of GPUs alone; a faster one may be cheaper, too.",
        old="for plan in roomy if",
        new="for plan in roomy[:1] if",
        told="Llama 3 70B: it takes",
    ),
    Wrong(
        what="Takes a plan that is tight.",
        old=" if not plan.tight",
        new="",
        told="TP 4 CP 2 PP 4, ZeRO 1, micro-batch 1 on 32 GPUs is tight",
    ),
    Wrong(
        what="Stops at the first number of GPUs without a plan for the money: the model does not fit there.",
        old=SPEND,
        new="""
        best = None
        gpus = 8
        while gpus <= most_gpus:
            plans, _ = propose(replace(training, gpus=gpus))
            affordable = [plan for plan in plans if plan.dollars <= dollars]
            if not affordable:
                break
            fastest = min(affordable, key=lambda plan: plan.days)
            if best is None or fastest.days < best[1].days:
                best = (gpus, fastest)
            gpus *= 2
        return best
        """,
        told="Llama 3 70B: spend finds no plan",
    ),
    Wrong(
        what="Takes the largest cluster that can be paid for; with a small batch a smaller one is faster.",
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
        told="8 sequences in a step: it takes",
    ),
    Wrong(
        what="Does not look at how many GPUs there are.",
        old="while gpus <= most_gpus:",
        new="while gpus <= 256:",
        told="128 GPUs are not 8 times a power of two, at most 64",
    ),
    Wrong(
        what="Returns the layout alone.",
        old="    return gpus, plan\n",
        new="    return plan.layout\n",
        told="expected a number of GPUs and a Plan, not Layout",
    ),
    Right(
        what="From the most GPUs down, and keeps the best in hand.",
        old=SPEND,
        new="""
        best = None
        gpus = most_gpus
        while gpus >= 8:
            for plan in propose(replace(training, gpus=gpus))[0]:
                sound = plan.dollars <= dollars and not plan.tight
                if sound and (best is None or plan.days < best[1].days):
                    best = (gpus, plan)
            gpus //= 2
        return best
        """,
    ),
]
