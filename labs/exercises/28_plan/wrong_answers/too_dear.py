# rejected: it costs
"""Takes the slowest plan that is in time: memory and days fit, dollars do not."""

from dataclasses import replace

from shared.planner import Layout, Training, propose


def plan(training: Training, most_gpus: int, days: float, dollars: float) -> tuple[int, Layout]:
    plans, _ = propose(replace(training, gpus=most_gpus))
    in_time = [one for one in plans if one.days <= days]
    return most_gpus, max(in_time, key=lambda one: one.dollars).layout
