"""ZeRO-1: each rank keeps the optimizer state of 1/N of the parameters.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_zero_1.py
Written by:  notebooks/18_sharded_optimizer.ipynb (edit it there)
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


class Zero1(torch.optim.Optimizer):
    """An optimizer whose state is spread evenly over the ranks of ``group``; all of them must call it.

    Args:
        params: as for any optimizer, parameters or parameter groups, all of one dtype on one device. The
            trainable ones get the values of the group's rank 0. Frozen parameters and buffers (batch norm)
            are not synchronized: make them equal first.
        build: makes an optimizer for the parameter groups that it is given. It must be element-wise,
            as Adam and SGD are. A parameter that no rank used gets zeros as its gradient, not None.

    ``flat``, (N * length,), holds the trainable parameters one after another, then zeros up to a multiple
    of N. ``gradient`` has the same layout. Parameters and their gradients become views of the two. ``part``,
    (length,), is this rank's part of ``flat``; the optimizer that ``build`` made knows nothing else.

    ``step()`` averages the gradients over the ranks. Before it, ``p.grad`` is this rank's own: clip with
    ``clip_grad_norm_(max_norm)`` of this class, right before ``step()``. A ``state_dict()`` is one rank's
    part. For bfloat16 take ``WithMasters`` (lesson_18/proof_masters.py): here the mean and the norm would
    also be computed in bfloat16. Source: Rajbhandari et al., ZeRO, 2020, arXiv 1910.02054.
    """

    def __init__(self, params: Iterable, build: Callable, group: dist.ProcessGroup | None = None):
        self.group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        groups = list(params)
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        trainable = [[p for p in param_group["params"] if p.requires_grad] for param_group in groups]
        self.params = [p for own in trainable for p in own]
        if len({(p.dtype, p.device) for p in self.params}) != 1:
            found = sorted({f"{p.dtype} on {p.device}" for p in self.params})
            raise ValueError(f"all parameters need one dtype and one device, found {found}")

        numel = sum(p.numel() for p in self.params)
        self.flat = self.params[0].new_zeros(numel + -numel % self.ranks)
        self.gradient = torch.zeros_like(self.flat)
        self.gradients = self.views(self.gradient)
        for p, place in zip(self.params, self.views(self.flat), strict=True):
            place.copy_(p.detach())
            p.data = place
        dist.broadcast(self.flat, group=group, group_src=0)
        self.addresses = [p.data_ptr() for p in self.params]
        self.part = self.flat.chunk(self.ranks)[self.rank]

        self.ranges = self.ranges_in_part([sum(p.numel() for p in own) for own in trainable])
        self.shards = [nn.Parameter(self.part[own]) for own in self.ranges]  # the same memory
        options = [
            {**param_group, "params": [shard]} for param_group, shard in zip(groups, self.shards, strict=True)
        ]
        self.optimizer = build(options)
        super().__init__(self.optimizer.param_groups, self.optimizer.defaults)
        self.share_state()
        self.zero_grad()

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The places of the parameters in ``flat``, in their shapes."""
        sizes = [p.numel() for p in self.params]
        parts = flat[: sum(sizes)].split(sizes)
        return [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]

    def ranges_in_part(self, sizes: list[int]) -> list[slice]:
        """The range of each parameter group in this rank's part; maybe empty."""
        begin = self.rank * len(self.part)
        ranges = []
        start = 0
        for size in sizes:
            end = start + size
            ranges.append(slice(max(start - begin, 0), max(end - begin, 0)))
            start = end
        return ranges

    def share_state(self) -> None:
        """What a scheduler sets is what the inner optimizer reads."""
        self.param_groups = self.optimizer.param_groups
        self.state = self.optimizer.state

    @torch.no_grad()
    def step(self) -> None:
        if self.shards[0].grad is None:  # not clipped
            self.average()
        elif self.changed():
            raise RuntimeError("the gradients have changed since clip_grad_norm_: clip right before step()")
        self.optimizer.step()
        for shard in self.shards:
            shard.grad = None
        self.gather_parameters()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Average the gradients and scale them, so that the norm of all is at most ``max_norm``.

        Call it right before ``step()``, on all ranks. Returns the norm that the averaged gradient had.
        """
        self.average()
        square = sum(shard.grad.square().sum() for shard in self.shards)
        dist.all_reduce(square, group=self.group)
        norm = square.sqrt()
        for shard in self.shards:
            shard.grad *= (max_norm / (norm + 1e-6)).clamp(max=1).to(shard.dtype)
        return norm

    def average(self) -> None:
        """Give each shard its part of the gradient's mean over the ranks."""
        if [p.data_ptr() for p in self.params] != self.addresses:
            raise RuntimeError("a parameter has left the flat buffer: move and cast the model before Zero1")
        for p, place in zip(self.params, self.gradients, strict=True):
            if p.grad is None:  # after model.zero_grad() nothing was added
                place.zero_()
            elif p.grad.data_ptr() != place.data_ptr():  # after model.zero_grad() autograd made a new one
                place.copy_(p.grad)
            p.grad = place
        self.averaged = self.gradient._version  # counts what changes it
        mean = self.average_gradient()
        for shard, own in zip(self.shards, self.ranges, strict=True):
            shard.grad = mean[own]

    def changed(self) -> bool:
        """Whether the gradients have changed since ``average`` took them."""
        replaced = any(p.grad is not place for p, place in zip(self.params, self.gradients, strict=True))
        return replaced or self.gradient._version != self.averaged

    def average_gradient(self) -> torch.Tensor:
        """Reduce-scatter: (length,), this rank's part of the gradient's mean over the ranks."""
        mean = torch.empty_like(self.part)
        dist.reduce_scatter_tensor(mean, self.gradient, op=dist.ReduceOp.AVG, group=self.group)
        return mean

    def gather_parameters(self) -> None:
        """All-gather: the parts that the other ranks have updated."""
        dist.all_gather_into_tensor(self.flat, self.part, group=self.group)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """``model.zero_grad()`` does as well, at the price of a copy in ``step()``."""
        self.gradient.zero_()
        for p, place in zip(self.params, self.gradients, strict=True):
            p.grad = place  # backward adds to it
        for shard in self.shards:
            shard.grad = None

    def load_state_dict(self, state_dict: dict) -> None:
        self.optimizer.load_state_dict(state_dict)
        self.share_state()


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # Zero1 makes the parameters equal; each rank has data of its own
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    optimizer = Zero1(groups, lambda shards: torch.optim.AdamW(shards, lr=0.02))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    x = torch.randn(256, 32, device=device)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())

    moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    own = sum(t.nbytes for t in moments), sum(p.double().sum().item() for p in model.parameters())
    everyone = [None] * ranks
    dist.all_gather_object(everyone, own)
    sizes = [size for size, _ in everyone]
    whole = 2 * sum(p.nbytes for p in model.parameters())
    assert sum(sizes) == whole and max(sizes) == 2 * optimizer.part.nbytes, (
        "two moments of 1/N of the parameters"
    )
    assert len({total for _, total in everyone}) == 1, f"the ranks have different parameters: {everyone}"
    assert losses[-1] < 0.5 * losses[0], losses
    if rank == 0:
        for r, size in enumerate(sizes):
            print(f"[rank {r}] keeps {size:,} of {whole:,} bytes of AdamW's state")
        print(f"loss of rank 0: {losses[0]:.2f} -> {losses[-1]:.2f}; all ranks have the same parameters")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
