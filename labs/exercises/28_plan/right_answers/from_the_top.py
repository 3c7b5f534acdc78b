# accepted: from the most GPUs down, and it stops when it becomes too slow
"""Fewer GPUs are never dearer by much: failures and bubbles are fewer."""

from dataclasses import replace

from shared.planner import Layout, Training, propose


def plan(training: Training, most_gpus: int, days: float, dollars: float) -> tuple[int, Layout]:
    found = []
    gpus = most_gpus
    while gpus >= 8:
        plans, _ = propose(replace(training, gpus=gpus))
        in_time = [one for one in plans if one.days <= days]
        if plans and not in_time:
            break
        found += [(one.dollars, gpus, one.layout) for one in in_time]
        gpus //= 2
    found.sort(key=lambda one: one[0])
    return found[0][1], found[0][2]
