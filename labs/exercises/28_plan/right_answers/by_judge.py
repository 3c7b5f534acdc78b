# accepted: a search of its own, with judge alone
"""Tries layouts with ZeRO 3 or a pipeline, and counts in GPU hours."""

import itertools
from dataclasses import replace

from shared.planner import Layout, Plan, Training, judge

SIZES = (1, 2, 4, 8, 16)


def layouts(gpus: int) -> list[Layout]:
    found = []
    for tp, cp, pp, chunks, size in itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8), SIZES, (1, 2, 4, 8), (1, 2, 4)
    ):
        if gpus % (tp * cp * pp) or (chunks > 1 and pp == 1):
            continue
        for zero, recompute in itertools.product((1, 3), ("none", "full")):
            found.append(
                Layout(
                    tp=tp,
                    cp=cp,
                    pp=pp,
                    dp=gpus // (tp * cp * pp),
                    zero=zero,
                    chunks=chunks,
                    schedule="interleaved" if chunks > 1 else "1F1B",
                    micro_batch=size,
                    recompute=recompute,
                    sequence_parallel=tp > 1,
                    context="gather",
                )
            )
    return found


def plan(training: Training, most_gpus: int, days: float, dollars: float) -> tuple[int, Layout]:
    best: Plan | None = None
    number = 0
    for gpus in (2**power for power in range(3, 12) if 2**power <= most_gpus):
        for layout in layouts(gpus):
            found = judge(replace(training, gpus=gpus), layout)
            if not isinstance(found, Plan) or found.days > days or found.dollars > dollars:
                continue
            if best is None or found.dollars < best.dollars:
                best, number = found, gpus
    assert best is not None
    return number, best.layout
