# rejected: is divided by 2
"""Takes the mean of the weighted results."""

from typing import Any

import torch
import torch.distributed as dist


class ExchangeRows(torch.autograd.Function):
    """Each rank sends rows to each rank: (rows, width) to (rows, width), as many as arrive."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
        """The first ``send[0]`` rows go to rank 0, the next ``send[1]`` to rank 1. ``receive`` alike."""
        ctx.send = send
        ctx.receive = receive
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), receive, send)
        return received

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of the loss with respect to ``rows``, and None for each of the two lists."""
        back = gradient.new_empty(sum(ctx.send), *gradient.shape[1:])
        dist.all_to_all_single(back, gradient.contiguous(), ctx.send, ctx.receive)
        return back, None, None


def dispatch(tokens: torch.Tensor, chosen: torch.Tensor, experts: int) -> tuple[torch.Tensor, list[int], Any]:
    """Send each token to the experts that it has chosen. A rank may have no tokens, and may get none.

    Args:
        tokens: (tokens, width), this rank's own.
        chosen: (tokens, k), numbers of experts.
        experts: how many there are in all. Of N ranks, rank r has those from r * experts / N on.

    Returns:
        rows: (rows, width), for this rank's experts, sorted by expert.
        load: how many of these rows are for each of this rank's experts.
        way: whatever ``combine`` needs.
    """
    ranks = dist.get_world_size()
    slots = chosen.flatten().argsort(stable=True)
    for_each_expert = chosen.flatten().bincount(minlength=experts)
    from_each_rank = torch.empty_like(for_each_expert)
    dist.all_to_all_single(from_each_rank, for_each_expert)
    from_each_rank = from_each_rank.view(ranks, -1)
    send = for_each_expert.view(ranks, -1).sum(1).tolist()
    receive = from_each_rank.sum(1).tolist()
    expert = torch.arange(experts // ranks, device=tokens.device).repeat(ranks)
    by_expert = expert.repeat_interleave(from_each_rank.flatten()).argsort(stable=True)
    arrived = ExchangeRows.apply(tokens[slots // chosen.shape[1]], send, receive)
    return arrived[by_expert], from_each_rank.sum(0).tolist(), (slots, send, receive, by_expert)


def combine(results: torch.Tensor, weights: torch.Tensor, way: Any) -> torch.Tensor:
    """Send the results back and add up those of each token, each times its weight: (tokens, width).

    Args:
        results: (rows, width), in the order of ``rows``.
        weights: (tokens, k), in the order of ``chosen``.
        way: what ``dispatch`` returned.
    """
    slots, send, receive, by_expert = way
    returned = ExchangeRows.apply(results[by_expert.argsort()], receive, send)
    places = returned[slots.argsort()]
    return (places.unflatten(0, weights.shape) * weights.unsqueeze(-1)).mean(1)
