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
    raise NotImplementedError  # your turn: replace this line
