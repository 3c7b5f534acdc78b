"""Planted faults of lesson 12; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "12_tokens",
        "loss_sum(model, micro_batch) * dist.get_world_size() / tokens",
        "loss_sum(model, micro_batch) / tokens",
        "DDP 0.weight: differs by",
        run="12_token_mean",
    ),
    Fault(
        "12_tokens",
        "model.set_requires_gradient_sync(is_last)",
        "model.set_requires_gradient_sync(True)",
        "averages in 3 steps, expected 2 in each",
        run="12_token_mean",
    ),
    Fault("12_tokens", "op=dist.ReduceOp.MIN", "op=dist.ReduceOp.MAX", "list index out of range"),
    Fault(
        "12_token_mean",
        "for micro_batch in everyone) / count(everyone)",
        "for micro_batch in everyone) / len(everyone)",
        "DDP 0.weight: differs by",
    ),
    Fault(
        "12_averages",
        "divisor = group.world_size if by_all else len(present)",
        "divisor = group.world_size",
        "by those left weight: differs by",
    ),
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
        "12_optimizer",
        'dist.broadcast(state["momentum_buffer"], src=int(last))',
        'dist.broadcast(state["momentum_buffer"], src=0)',
        "SGD, same state    after more: (True, ",
    ),
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
]
