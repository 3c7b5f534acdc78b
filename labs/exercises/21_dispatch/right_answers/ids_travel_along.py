# accepted: each row brings the number of its expert, and results are added up one by one
"""Counts for the ranks only; a second exchange tells the expert of each row."""

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
    here = experts // ranks
    owner = chosen.flatten() // here
    for_each_rank = owner.bincount(minlength=ranks)
    from_each_rank = torch.empty_like(for_each_rank)
    dist.all_to_all_single(from_each_rank, for_each_rank)
    send = for_each_rank.tolist()
    receive = from_each_rank.tolist()
    numbers = ExchangeRows.apply(chosen.flatten()[slots].unsqueeze(1), send, receive).squeeze(1)
    by_expert = numbers.argsort(descending=True).flip(0)
    load = (numbers - here * dist.get_rank()).bincount(minlength=here).tolist()
    arrived = ExchangeRows.apply(tokens[slots // chosen.shape[1]], send, receive)
    return arrived[by_expert], load, (slots, send, receive, by_expert)


def combine(results: torch.Tensor, weights: torch.Tensor, way: Any) -> torch.Tensor:
    """Send the results back and add up those of each token, each times its weight: (tokens, width).

    Args:
        results: (rows, width), in the order of ``rows``.
        weights: (tokens, k), in the order of ``chosen``.
        way: what ``dispatch`` returned.
    """
    slots, send, receive, by_expert = way
    returned = ExchangeRows.apply(results[by_expert.argsort()], receive, send)
    rows = returned * weights.flatten()[slots].unsqueeze(1)
    output = rows.new_zeros(len(weights), rows.shape[1])
    return output.index_add(0, slots // weights.shape[1], rows)
