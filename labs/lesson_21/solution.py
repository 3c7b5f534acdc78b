"""Exercise 21: the way of the tokens to their experts and back, and what divides the gradients."""

from typing import Any

import torch
import torch.distributed as dist


class ExchangeRows(torch.autograd.Function):
    """Each rank sends rows to each rank: (rows, width) to (rows, width) that arrive."""

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
        # solution: begin
        back = gradient.new_empty(sum(ctx.send), *gradient.shape[1:])
        dist.all_to_all_single(back, gradient.contiguous(), ctx.send, ctx.receive)
        return back, None, None
        # solution: end


def exchange_counts(chosen: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts first: rows that leave this rank, and rows that arrive. All ranks must call it.

    Returns:
        leaving: (ranks, experts of a rank), for which expert of which rank.
        arriving: (ranks, experts of a rank), from which rank for which of this rank's experts.
    """
    ranks = dist.get_world_size()
    leaving = chosen.flatten().bincount(minlength=experts)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return leaving.view(ranks, -1), arriving.view(ranks, -1)


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
    leaving, arriving = exchange_counts(chosen, experts)
    ranks, here = arriving.shape  # here: experts of a rank
    send = leaving.sum(1).tolist()  # rows for each rank
    receive = arriving.sum(1).tolist()
    # solution: begin
    slots = chosen.flatten().argsort(stable=True)
    expert = torch.arange(here, device=tokens.device).repeat(ranks)
    by_expert = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
    arrived = ExchangeRows.apply(tokens[slots // chosen.shape[1]], send, receive)
    return arrived[by_expert], arriving.sum(0).tolist(), (slots, send, receive, by_expert)
    # solution: end


def combine(results: torch.Tensor, weights: torch.Tensor, way: Any) -> torch.Tensor:
    """Send the results back and add up those of each token, each times its weight: (tokens, width).

    Args:
        results: (rows, width), in the order of ``rows``.
        weights: (tokens, k), in the order of ``chosen``.
        way: what ``dispatch`` returned.
    """
    # solution: begin
    slots, send, receive, by_expert = way
    returned = ExchangeRows.apply(results[by_expert.argsort()], receive, send)
    places = returned[slots.argsort()]
    return (places.unflatten(0, weights.shape) * weights.unsqueeze(-1)).sum(1)
    # solution: end


def average_gradients(dense: list[torch.Tensor], experts: list[torch.Tensor]) -> None:
    """After backward: make each gradient, in place, that of the *mean* of all ranks' losses, as DDP does.

    Args:
        dense: gradients of what every rank has. Each comes from this rank's loss alone.
        experts: gradients of what this rank alone has. Rows of all ranks came here, and so did gradients.
    """
    # solution: begin
    ranks = dist.get_world_size()
    for gradient in dense:
        dist.all_reduce(gradient)
        gradient.div_(ranks)
    for gradient in experts:
        gradient.div_(ranks)
    # solution: end
