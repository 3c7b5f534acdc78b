"""Exercise 19: a DDP script becomes FSDP2. Then, if you like, a sharded unit with its backward."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard


def prepare(build: Callable[[], nn.Module]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model that ``build`` makes, ready to train, and its optimizer.

    All ranks begin with the values of rank 0. Each block of ``model.blocks`` is a unit, and a rank keeps a
    shard of every parameter. ``model.fill_buffers()`` computes the buffers that are in no state dict. On the
    meta device ``build`` takes no memory; only rank 0 may build the whole, and not on its GPU.
    """
    device = "cpu" if dist.get_backend() == "gloo" else "cuda"
    # solution: begin
    with torch.device("meta"):
        model = build()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device=device)
    model.fill_buffers()
    first = build().state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, first, options=options)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    # solution: found
    # raise NotImplementedError  # your turn: remove this line, and turn the script into FSDP2
    # model = nn.parallel.DistributedDataParallel(build().to(device))
    # return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    # solution: end


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Given: the mean over the next tokens of these rows."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, parts: list[torch.Tensor]) -> None:
    """A step over micro-batches of the same size. Gradients travel once, in the last of them."""
    optimizer.zero_grad()
    for number, tokens in enumerate(parts):
        last = number == len(parts) - 1
        # solution: begin
        model.set_requires_gradient_sync(last)
        (loss_of(model, tokens) / len(parts)).backward()
        # solution: found
        # model.require_backward_grad_sync = last  # what no_sync() does
        # (loss_of(model, tokens) / len(parts)).backward()
        # solution: end
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


@torch.no_grad()
def evaluate(model: nn.Module, batches: list[torch.Tensor]) -> float:
    """The mean loss of all ranks' batches, on every rank. Each rank has at least one; some have more."""
    device = batches[0].device
    # solution: begin
    numbers = torch.tensor(len(batches), device=device)
    most = numbers.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(numbers)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for number in range(int(most)):
        loss = loss_of(model, batches[min(number, len(batches) - 1)])  # each forward pass gathers
        if number < len(batches):
            total += loss
    dist.all_reduce(total)
    return (total / numbers).item()
    # solution: found
    # numbers = torch.tensor(len(batches), device=device)
    # total = torch.zeros((), dtype=torch.float64, device=device)
    # for batch in batches:
    #     total += loss_of(model.module, batch)
    # dist.all_reduce(numbers)
    # dist.all_reduce(total)
    # return (total / numbers).item()
    # solution: end


def save(model: nn.Module, path: Path) -> None:
    """Rank 0 writes the whole model's state dict, with the names that ``build``'s model has."""
    # solution: begin
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    if dist.get_rank() == 0:
        torch.save(whole, path)
    # solution: found
    # if dist.get_rank() == 0:
    #     torch.save(model.module.state_dict(), path)
    # solution: end


class ShardedUnit:
    """Shards the parameters of ``module`` over all ranks. No rank holds the whole longer than it computes.

    The parameters are equal on all ranks. Those that are frozen stay whole. The module returns one tensor,
    and each of its other parameters takes part in each backward.

    ``shard``, (length,), is this rank's part, for the optimizer, with a memory of its own. All trainable
    parameters, one behind the other and followed by zeros up to N * length, are the N shards in turn:
    ``whole``. Calls in a step: an all-gather in each pass, and a reduce-scatter.
    """

    def __init__(self, module: nn.Module) -> None:
        self.ranks = dist.get_world_size()
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.params]
        numel = sum(self.sizes)
        self.whole = self.params[0].new_zeros(numel + -numel % self.ranks)
        for p, part in zip(self.params, self.whole[:numel].split(self.sizes), strict=True):
            part.copy_(p.detach().flatten())
            p.data = part.view(p.shape)  # it lives in ``whole`` now
        # solution: begin
        self.shard = nn.Parameter(self.whole.chunk(self.ranks)[dist.get_rank()].clone())
        self.reshard()
        # solution: end
        module.register_forward_pre_hook(self.before_forward)
        module.register_forward_hook(self.after_forward)
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.after_gradient)

    def unshard(self) -> None:
        """Make the parameters whole again, in the storage in which they were: autograd points there."""
        # solution: begin
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        dist.all_gather_into_tensor(self.whole, self.shard.detach())
        # solution: end

    def reshard(self) -> None:
        """Free the memory of the whole parameters."""
        # solution: begin
        self.whole.untyped_storage().resize_(0)
        # solution: end

    def before_forward(self, module: nn.Module, inputs: tuple) -> None:
        self.unshard()

    def after_forward(self, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        """Forward is over. Backward will begin at ``output``, if it needs a gradient."""
        # solution: begin
        self.reshard()
        if output.requires_grad:
            output.register_hook(self.before_backward)
        # solution: end

    def before_backward(self, gradient: torch.Tensor) -> None:
        self.unshard()

    def take_gradients(self) -> torch.Tensor:
        """(N * length,): the gradients, laid out as ``whole`` is. Leaves each ``p.grad`` empty."""
        gradient = self.shard.new_zeros(self.ranks * len(self.shard))
        parts = gradient[: sum(self.sizes)].split(self.sizes)
        for p, part in zip(self.params, parts, strict=True):
            part.copy_(p.grad.flatten())
            p.grad = None
        return gradient

    def after_gradient(self, p: nn.Parameter) -> None:
        """Autograd calls this for each trainable parameter, when ``p.grad`` is complete.

        After the last of them, ``shard.grad`` holds this rank's part of the mean gradient over the ranks,
        added to what it held before, and each ``p.grad`` is None.
        """
        # solution: begin
        if any(p.grad is None for p in self.params):
            return
        self.reshard()
        gradient = self.take_gradients()
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, gradient)
        mean /= self.ranks
        if self.shard.grad is None:
            self.shard.grad = mean
        else:
            self.shard.grad += mean
        # solution: end
