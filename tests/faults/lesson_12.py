"""Planted faults of lesson 12."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="12_tokens",
        old="loss_sum(model, micro_batch) * dist.get_world_size() / tokens",
        new="loss_sum(model, micro_batch) / tokens",
        told="DDP 0.weight: differs by",
        run="12_token_mean",
    ),
    Fault(
        lab="12_tokens",
        old="model.set_requires_gradient_sync(is_last)",
        new="model.set_requires_gradient_sync(True)",
        told="averages in 3 steps, expected 2 in each",
        run="12_token_mean",
    ),
    Fault(
        lab="12_averages",
        old="divisor = group.world_size if by_all else len(present)",
        new="divisor = group.world_size",
        told="by those left weight: differs by",
    ),
    Fault(
        lab="12_join",
        old="with Join([ddp], **options):",
        new="with Join([ddp]):",
        told="without Join: 'Rank 1 has exhausted all 6 of its inputs!', expected",
        run="12_averages",
    ),
    Fault(
        lab="12_join",
        old="used += 1",
        new="used += len(x)",
        told="inputs used by each rank: [80, 96]",
    ),
    Fault(
        lab="12_optimizer",
        old='dist.broadcast(state["momentum_buffer"], src=int(last))',
        new='dist.broadcast(state["momentum_buffer"], src=0)',
        told="SGD, same state    after more: (True, ",
    ),
    Fault(
        lab="12_skew",
        old="self.with_buffers(self.x)",
        new="self.with_buffers.module(self.x)",
        told="forward, buffers: expected that the others wait",
    ),
    Fault(
        lab="12_timeout",
        old="pause_s: float = 0.4",
        new="pause_s: float = 4.0",
        told="in many_short_waits",
    ),
]
