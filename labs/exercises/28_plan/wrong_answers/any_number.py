# rejected: GPUs come in nodes of 8
"""Takes as many GPUs as the budget pays for."""

from shared.planner import Layout, Training


def plan(training: Training, most_gpus: int, days: float, dollars: float) -> tuple[int, Layout]:
    gpus = int(dollars / (days * 24 * training.dollars)) | 1
    return gpus, Layout(dp=gpus, zero=3)
