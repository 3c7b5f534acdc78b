"""Planted faults of lesson 12; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "12_join",
        "with Join([ddp], **options):",
        "with Join([ddp]):",
        "without Join: 'Rank 1 has exhausted all 6 of its inputs!', expected",
        run="12_averages",
    ),
    Fault(
        "12_join",
        "learning_rate)\n    used = 0",
        "learning_rate, momentum=0.9)\n    used = 0",
        "by all weight: differs by",
        run="12_averages",
    ),
    Fault(
        "12_join",
        "used += 1",
        "used += len(x)",
        "inputs used by each rank: [80, 96]",
    ),
    Fault(
        "12_averages",
        "self.metric.reduce(0.0, 0)",
        "self.metric.reduce(1.0, 1)",
        "the metric holds",
    ),
    Fault(
        "12_optimizer",
        'dist.broadcast(state["momentum_buffer"], src=int(last))',
        'dist.broadcast(state["momentum_buffer"], src=0)',
        "SGD, same state    after more: (True, ",
    ),
    Fault(
        "12_unused",
        "with ddp.no_sync() if forward_inside",
        "with nullcontext() if forward_inside",
        "all-reduces by way: [8, 8, 8], expected [8, 1, 8]",
    ),
    Fault("12_unused", "/ k\n", "/ k / k\n", "synchronized always."),
    Fault(
        "12_skew",
        "self.with_buffers(self.x)",
        "self.with_buffers.module(self.x)",
        "forward, buffers: expected that the others wait",
    ),
    Fault(
        "12_timeout",
        "pause_s: float = 0.4",
        "pause_s: float = 4.0",
        "in many_short_waits",
    ),
    Fault(
        "12_starved",
        "batch_size: int = 53",
        "batch_size: int = 48",
        "48 images divide by 2 ranks: nothing is uneven",
    ),
    Fault(
        "12_starved",
        "self.done.append(time.monotonic())",
        "self.done.append(self.done[-1] if self.done else time.monotonic())",
        "starved, step 1: a rank was done before rank 1 was ready",
    ),
    Fault(
        "12_starved",
        "loss = super().train_step(images, labels, steps)",
        "loss = super().train_step(images[1:], labels[1:], steps)",
        "starved conv1.weight: differs by",
    ),
    Fault(
        "12_hang",
        "super().note(number, frame)",
        "os._exit(1)",
        "the chain breaks: no sign that rank 1 notes SIGTERM",
        run="12_chain",
        launch="python",
    ),
    Fault(
        "12_chain",
        '"--max-restarts=1"',
        '"--max-restarts=0"',
        "the chain breaks: no sign that one restart is left",
        launch="python",
    ),
]

STILL_WITHOUT: list[str] = []
