# rejected: days on 8 GPUs, allowed are
"""Takes what is cheapest, however long it takes."""

from shared.planner import Layout, Training, propose


def plan(training: Training, most_gpus: int, days: float, dollars: float) -> tuple[int, Layout]:
    plans, _ = propose(training)
    return 8, min(plans, key=lambda one: one.dollars).layout
