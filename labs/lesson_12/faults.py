"""Planted faults of lesson 12."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="12_tokens",
        old="loss_sum(model, micro_batch) * dist.get_world_size() / tokens",
        new="loss_sum(model, micro_batch) / tokens",
        told="DDP, weighted by all tokens: 0.weight: differs by",
        run="12_token_mean",
    ),
    Fault(
        lab="12_tokens",
        old="model.set_requires_gradient_sync(is_last)",
        new="model.set_requires_gradient_sync(True)",
        told="reductions in 3 steps, expected 2 in each",
        run="12_token_mean",
    ),
    Fault(
        lab="12_token_mean",
        old="tokens += count([micro_batch])",
        new="tokens = count([micro_batch])",
        told="DDP, gradients scaled later: 0.weight: differs by",
    ),
    # A step of cut prompts.
    Fault(
        lab="12_token_mean",
        old="    tokens.clamp_(min=1)  # or 0 / 0 makes every gradient NaN\n",
        new="",
        told="DDP, no token counts: 0.weight: holds a value that is not finite",
    ),
    Fault(
        lab="12_averages",
        old="with Join([ddp], **options):",
        new="with Join([ddp]):",
        told="without Join: 'Rank 1 has exhausted all 6 of its inputs!', expected",
    ),
    Fault(
        lab="12_averages",
        old='optimizer.state[p]["momentum_buffer"])',
        new="p.detach())",
        told="after Join the ranks' momentum should have differed",
    ),
    Fault(
        lab="12_batches",
        old="for other in [*batches[-1], index]]) > most",
        new="for other in batches[-1] or [index]]) > most",
        told="8 sequences: over 8",
        ranks=0,
    ),
    Fault(
        lab="12_batches",
        old="range(0, len(batches), RANKS)",
        new="range(0, len(batches) - RANKS + 1)",
        told="8 sequences: uses ",
        ranks=0,
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
