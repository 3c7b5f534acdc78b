# rejected: TP 64 leaves the node of 8 GPUs
"""Divides each layer among all GPUs."""

from shared.planner import Layout, Training


def plan(training: Training, most_gpus: int, days: float, dollars: float) -> tuple[int, Layout]:
    return 64, Layout(tp=64)
