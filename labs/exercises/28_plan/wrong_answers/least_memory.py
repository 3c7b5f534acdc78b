# rejected: it fits, but a plan for
"""Takes what needs the least memory within the limits."""

from dataclasses import replace

from shared.planner import Layout, Training, propose


def plan(training: Training, most_gpus: int, days: float, dollars: float) -> tuple[int, Layout]:
    plans, _ = propose(replace(training, gpus=most_gpus))
    fits = [one for one in plans if one.days <= days and one.dollars <= dollars]
    return most_gpus, min(fits, key=lambda one: one.memory.total).layout
