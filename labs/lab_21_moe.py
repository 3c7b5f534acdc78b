"""A mixture of experts over all ranks: each rank has some experts, and tokens travel to those they chose.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_21_moe.py
Written by:  notebooks/21_expert_parallel.ipynb (edit it there)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


class Router(nn.Module):
    """Tokens (tokens, width) to weights and numbers of the ``k`` experts of each token, both (tokens, k)."""

    def __init__(self, width: int, experts: int, k: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.k = k
        self.weight = nn.Parameter(torch.randn(experts, width, dtype=dtype) / math.sqrt(width))

    def choose(self, probabilities: torch.Tensor) -> torch.Tensor:
        return probabilities.topk(self.k).indices

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        precise = torch.promote_types(tokens.dtype, torch.float32)  # never in bfloat16
        with torch.autocast(tokens.device.type, enabled=False):  # it would cast them again
            probabilities = F.linear(tokens.to(precise), self.weight.to(precise)).softmax(-1)
        chosen = self.choose(probabilities)
        weights = probabilities.gather(-1, chosen)
        if self.k > 1:  # for k = 1 this would be 1, and teach nothing
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(tokens.dtype), chosen


class Experts(nn.Module):
    """MLPs without biases. ``up`` is (experts, width, hidden), ``down`` is (experts, hidden, width)."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        self.up = nn.Parameter(up)
        self.down = nn.Parameter(down)

    def forward(self, rows: torch.Tensor, load: list[int]) -> torch.Tensor:
        """(rows, width) to the same. The first ``load[0]`` rows are for expert 0, and so on; 0 is fine."""
        parts = []  # a loop; at work F.grouped_mm, checked in lesson_21/proof_gpt.py
        for part, up, down in zip(rows.split(load), self.up, self.down, strict=True):
            parts.append(F.gelu(part @ up) @ down)
        return torch.cat(parts)


class MoE(nn.Module):
    """All experts in one process: (..., width) to the same. This is what the layer means."""

    def __init__(
        self, width: int, hidden: int, experts: int, k: int = 2, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.router = Router(width, experts, k, dtype)
        up = torch.randn(experts, width, hidden, dtype=dtype) / math.sqrt(width)
        down = torch.randn(experts, hidden, width, dtype=dtype) / math.sqrt(hidden)
        self.experts = Experts(up, down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = self.router(tokens)
        y = torch.zeros_like(tokens)
        for number, (up, down) in enumerate(zip(self.experts.up, self.experts.down, strict=True)):
            token, place = (chosen == number).nonzero(as_tuple=True)
            rows = F.gelu(tokens[token] @ up) @ down
            y = y.index_add(0, token, rows * weights[token, place].unsqueeze(-1))
        return y.view_as(x)


def exchange(
    rows: torch.Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    """The first ``send[0]`` rows go to rank 0, and so on. Returns ``receive[0]`` rows from rank 0, ..."""
    received = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), receive, send, group=group)
    return received


class ExchangeRows(torch.autograd.Function):
    """``exchange``, through which gradients go back the way that the rows came: with the counts swapped."""

    @staticmethod
    def forward(
        ctx, rows: torch.Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup | None
    ) -> torch.Tensor:
        ctx.send = send
        ctx.receive = receive
        ctx.group = group
        return exchange(rows, send, receive, group)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return exchange(gradient, ctx.receive, ctx.send, ctx.group), None, None, None


@dataclass(frozen=True)
class Plan:
    """Which row goes where. A row is a token on its way to one of its ``k`` experts.

    Attributes:
        slots: for each row that is sent, sorted by expert: ``token * k + place``.
        send, receive: how many rows for each rank, and from each.
        by_expert: puts the rows that have arrived, sorted by sender, into the order of experts.
        load: how many rows each expert of this rank gets.
    """

    slots: torch.Tensor
    send: list[int]
    receive: list[int]
    by_expert: torch.Tensor
    load: list[int]


def plan_of(chosen: torch.Tensor, experts: int, group: dist.ProcessGroup | None) -> Plan:
    """Counts first: one small all-to-all, after which all ranks know what will arrive. For (tokens, k).

    The host has to know them as well, so it waits for the device: once, for all counts together.
    """
    ranks = dist.get_world_size(group)
    slots = chosen.flatten().argsort(stable=True)
    leaving = chosen.new_zeros(experts)  # for each expert; bincount would make the host wait
    leaving.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten()))
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving, group=group)
    arriving = arriving.view(ranks, -1)  # (sender, expert of ours)
    counts = [leaving.view(ranks, -1).sum(1), arriving.sum(1), arriving.sum(0)]
    numbers = torch.cat(counts).tolist()
    send, receive, load = numbers[:ranks], numbers[ranks : 2 * ranks], numbers[2 * ranks :]
    expert = torch.arange(experts // ranks, device=chosen.device).repeat(ranks)
    expert = expert.repeat_interleave(arriving.flatten(), output_size=sum(receive))
    return Plan(slots, send, receive, expert.argsort(stable=True), load)


class ExpertParallelMoE(nn.Module):
    """``whole`` over the ranks of ``group``: consecutive experts are on a rank, the router is on all.

    Gradients of experts are sums over the tokens of all ranks of the group, those of the router are not.
    """

    def __init__(
        self, whole: MoE, group: dist.ProcessGroup | None = None, exchange_rows: Callable = ExchangeRows.apply
    ) -> None:
        super().__init__()
        self.group = group
        self.exchange_rows = exchange_rows
        self.expert_count = len(whole.experts.up)
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.expert_count % ranks:
            raise ValueError(f"{self.expert_count} experts cannot be divided by {ranks} ranks")
        self.router = whole.router
        up = whole.experts.up.detach().chunk(ranks)[rank].clone()
        down = whole.experts.down.detach().chunk(ranks)[rank].clone()
        self.experts = Experts(up, down)

    def dispatch(self, tokens: torch.Tensor, plan: Plan) -> torch.Tensor:
        """(tokens, width) to the rows for this rank's experts, sorted by expert."""
        rows = tokens[plan.slots // self.router.k]
        arrived = self.exchange_rows(rows, plan.send, plan.receive, self.group)
        return arrived[plan.by_expert]

    def combine(self, rows: torch.Tensor, weights: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Send the experts' results back and add up those of each token: (tokens, width)."""
        as_arrived = rows[plan.by_expert.argsort()]
        returned = self.exchange_rows(as_arrived, plan.receive, plan.send, self.group)
        places = returned[plan.slots.argsort()]
        return (places.unflatten(0, weights.shape) * weights.unsqueeze(-1)).sum(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = self.router(tokens)
        plan = plan_of(chosen, self.expert_count, self.group)
        rows = self.experts(self.dispatch(tokens, plan), plan.load)
        return self.combine(rows, weights, plan).view_as(x)


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # the ranks begin with different numbers
    width, tokens = 8, 16
    whole = MoE(width, hidden=32, experts=2 * ranks, dtype=torch.float64).to(device)
    for p in whole.parameters():
        dist.broadcast(p.detach(), src=0)  # one truth
    x = torch.randn(tokens, width, dtype=torch.float64, device=device)  # each rank has its own tokens
    of_all = torch.empty(ranks * tokens, width, dtype=torch.float64, device=device)
    dist.all_gather_into_tensor(of_all, x)

    x_alone = of_all.requires_grad_()
    y_alone = whole(x_alone)
    y_alone.square().mean().backward()
    alone = {name: p.grad.clone() for name, p in whole.named_parameters()}
    whole.zero_grad()

    layer = ExpertParallelMoE(whole)
    x_here = x.clone().requires_grad_()
    y_here = layer(x_here)
    (y_here.square().sum() / y_alone.numel()).backward()  # this rank's part of the mean over all tokens
    dist.all_reduce(layer.router.weight.grad)  # the experts' gradients are sums over all ranks already

    pairs = {
        "output": (y_here, y_alone.chunk(ranks)[rank]),
        "gradient of the tokens": (x_here.grad, x_alone.grad.chunk(ranks)[rank]),
        "gradient of the router": (layer.router.weight.grad, alone["router.weight"]),
        "gradient of up": (layer.experts.up.grad, alone["experts.up"].chunk(ranks)[rank]),
        "gradient of down": (layer.experts.down.grad, alone["experts.down"].chunk(ranks)[rank]),
    }
    for name, (ours, expected) in pairs.items():
        assert torch.allclose(ours, expected, rtol=0, atol=1e-12), f"rank {rank}: {name} differs"
    if rank == 0:
        print(f"{layer.expert_count} experts, {layer.expert_count // ranks} on each of {ranks} ranks")
        print(f"equal to one process: {', '.join(pairs)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
