"""Planted faults of lesson 12; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "12_optimizer",
        'dist.broadcast(state["momentum_buffer"], src=int(last))',
        'dist.broadcast(state["momentum_buffer"], src=0)',
        "SGD, same state, after more: (True, ",
    ),
    Fault(
        "12_join",
        "hook.main_hook = lambda: self.reduce(0.0, 0)",
        "hook.main_hook = lambda: self.reduce(1.0, 1)",
        "the metric holds",
    ),
    Fault(
        "12_unused",
        'way.endswith("outside") else ddp.no_sync()',
        'way.endswith("outside") else nullcontext()',
        "AssertionError",
    ),
    Fault("12_unused", "/ k\n", "/ k / k\n", "synchronized always."),
    Fault(
        "12_skew",
        '"forward, buffers": (lambda: with_buffers(x), True)',
        '"forward, buffers": (lambda: with_buffers.module(x), True)',
        "forward, buffers: expected that the others wait",
    ),
    Fault(
        "12_timeout",
        "pause_s: float = 0.4",
        "pause_s: float = 4.0",
        "in many_short_waits",
    ),
]

STILL_WITHOUT: list[str] = []
