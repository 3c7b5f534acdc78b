"""Exercise 28: plan a training that fits into memory, days and dollars."""

from dataclasses import replace

from shared.planner import Layout, Training, propose


def plan(training: Training, most_gpus: int, days: float, dollars: float) -> tuple[int, Layout]:
    """Return how many GPUs to take, and how to divide the training among them.

    Args:
        training: all but the number of GPUs, which is 8 here: ``replace(training, gpus=64)`` asks about 64.
        most_gpus: so many can be had, in nodes of 8. A power of two.
        days, dollars: the training is to need at most so much. Both count what failures cost.

    Of what fits, take the cheapest. ``propose`` returns plans and rejected layouts, ``judge`` looks at one.
    """
    # solution: begin
    best: tuple[float, int, Layout] | None = None
    gpus = 8
    while gpus <= most_gpus:
        plans, _ = propose(replace(training, gpus=gpus))
        for one in plans:
            fits = one.days <= days and one.dollars <= dollars
            if fits and (best is None or one.dollars < best[0]):
                best = (one.dollars, gpus, one.layout)
        gpus *= 2
    if best is None:
        raise ValueError("nothing fits")
    return best[1], best[2]
    # solution: end
