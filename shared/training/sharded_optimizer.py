"""Any optimizer of torch.optim, its state and its gradients divided among ranks. Taught in lesson 18."""

import weakref
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from shared.comm.broadcast import broadcast_from_rank_0
from shared.training import shards
from shared.training.shards import params_of, without_params

UNFIT = (torch.optim.LBFGS, torch.optim.SparseAdam)  # one step for all parameters together; sparse gradients


class ShardedOptimizer(shards.FullState):
    """ZeRO-1 or ZeRO-2 around an optimizer class: each rank keeps the state of the parameters that it owns.

    It averages the gradients over the ranks, so no DDP is needed. Construct and ``step`` it on all ranks.

    Args:
        params: as for any optimizer, in the same order on each rank. Their values become rank 0's.
        optimizer_class: such as ``torch.optim.Adam``. LBFGS and SparseAdam are refused.
        stage: 1, ``step()`` averages the gradients and each rank keeps all of them; DDP may have averaged
            them before. 2, they are averaged during backward, and only the owner keeps its own:
            ``p.grad`` is None after backward, the owner's mean is ``mean[p]``. Then DDP must not be
            around the model, and each rank must use some parameter in each backward.
        process_group: the ranks that share; None for all.
        bucket_mb: gradients and parameters travel in buckets of about so many MiB, each of one owner.
        max_norm: clip the norm of all averaged gradients to this, as ``clip_grad_norm_`` does.
        options: those of the optimizer class. ``param_groups`` may be changed between steps as usual.

    Source: Rajbhandari et al., ZeRO, 2020, arXiv 1910.02054; whole parameters as in ZeroRedundancyOptimizer.
    """

    def __init__(
        self, params, optimizer_class, stage=1, process_group=None, bucket_mb=4.0, max_norm=None, **options
    ):
        if stage not in (1, 2) or issubclass(optimizer_class, UNFIT):
            raise ValueError(f"stage {stage} of {optimizer_class.__name__} is not supported")
        self.stage, self.group, self.cap, self.max_norm = stage, process_group, bucket_mb * 2**20, max_norm
        self.rank, self.ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.owner: dict[torch.Tensor, int] = {}  # a rank of the group
        self.load = [0] * self.ranks  # bytes of the parameters that learn, by owner
        self.mean: dict[torch.Tensor, torch.Tensor] = {}  # stage 2: averaged gradients of own parameters
        self.seen, self.arrived, self.hooked, self.turn = set(), set(), set(), 0
        super().__init__(params, {})
        self._assign(params_of(self.param_groups))
        self.inner = optimizer_class([self._own(group) for group in self.param_groups], **options)
        self.defaults, self.state = self.inner.defaults, self.inner.state
        for group, own in zip(self.param_groups, self.inner.param_groups, strict=True):
            group.update(without_params(own))

    def _assign(self, params: Iterable[torch.Tensor]) -> None:
        """Give each parameter to the rank with the fewest bytes so far, the largest parameter first."""
        for p in sorted(params, key=lambda p: -p.nbytes):
            self.owner[p] = self.load.index(min(self.load))
            self.load[self.owner[p]] += p.nbytes * p.requires_grad
        self.mine = {p for p, rank in self.owner.items() if rank == self.rank}
        self._make_buckets()
        broadcast_from_rank_0(params, self.group)

    def _own(self, group: dict) -> dict:
        """A parameter group with only those parameters that this rank owns, maybe none."""
        return without_params(group) | {"params": [p for p in group["params"] if p in self.mine]}

    def _make_buckets(self) -> None:
        """Cut what learns into buckets, last parameter first: its gradient is the first to be complete."""
        self.trainable = [p for p in params_of(self.param_groups)[::-1] if p.requires_grad]
        self.buckets = shards.fill_buckets(self.trainable, self.owner, self.cap)
        me = weakref.ref(self)  # a hook that held self would make a reference cycle
        for p in self.trainable if self.stage == 2 else ():
            if p not in self.hooked:
                p.register_post_accumulate_grad_hook(lambda p: (one := me()) and one._ready(p))
        self.hooked.update(self.trainable)

    def _ready(self, p: torch.Tensor) -> None:
        """Stage 2: autograd calls this when p's gradient is complete. Full buckets leave, in turn."""
        if not self.arrived:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        self.arrived.add(p)
        while self.turn < len(self.buckets) and self.arrived.issuperset(self.buckets[self.turn]):
            self.turn += 1
            self._average(self.buckets[self.turn - 1])

    def _end_of_backward(self) -> None:
        for bucket in self.buckets[self.turn :]:  # they hold something that this rank did not use
            self._average(bucket)
        self.arrived, self.turn = set(), 0

    @torch.no_grad()
    def _average(self, bucket: list[torch.Tensor]) -> None:
        """Replace gradients by their mean over the ranks: stage 1 on each rank, stage 2 on the owner."""
        self.seen.update(p for p in bucket if p.grad is not None)
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        if self.stage == 1:
            dist.all_reduce(flat, group=self.group)
        else:
            dist.reduce(flat, group=self.group, group_dst=self.owner[bucket[0]])
        flat /= self.ranks
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            if self.stage == 1:
                p.grad = part.view_as(p) if p.grad is None else p.grad.copy_(part.view_as(p))
                continue
            p.grad = None
            if p in self.mine:
                self.mean[p] = self.mean[p] + part.view_as(p) if p in self.mean else part.view_as(p)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Average what is not averaged yet, step on the own parameters, send them to all. Collective."""
        with torch.enable_grad():
            loss = closure() if closure else None
        if {p for p in self.owner if p.requires_grad} != set(self.trainable):
            self._make_buckets()  # something was frozen or thawed
        has = [[p.grad is not None or p in self.seen, p.grad is not None] for p in self.trainable]
        flags = torch.tensor(has, dtype=torch.int32, device=next(iter(self.owner)).device)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
        rows = flags.reshape(-1, 2).T.tolist()
        used, waiting = ({p for p, on in zip(self.trainable, row, strict=True) if on} for row in rows)
        for bucket in self.buckets:
            if not waiting.isdisjoint(bucket):
                self._average(bucket)
        for p in self.trainable:  # what no rank used has no gradient, and the optimizer leaves it alone
            p.grad = None if p not in used else self.mean.get(p) if self.stage == 2 else p.grad
        if self.max_norm is not None:
            shards.clip(self.trainable, self.mine, self.max_norm, self.group)
        for own, group in zip(self.inner.param_groups, self.param_groups, strict=True):
            own.update(without_params(group))  # a scheduler may have changed them
        self.inner.step()
        for bucket in self.buckets:
            if not used.isdisjoint(bucket):
                shards.send_bucket(bucket, self.owner[bucket[0]], self.group)
        self.full, self.seen = None, set()
        if self.stage == 2:
            self.zero_grad()  # they are used up
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.mean, self.seen, self.arrived, self.turn = {}, set(), set(), 0

    def add_param_group(self, param_group: dict) -> None:
        """As in any optimizer, on all ranks."""
        super().add_param_group(param_group)
        if self.inner is not None:
            group = self.param_groups[-1]
            self._assign(group["params"])
            self.inner.add_param_group(self._own(group))
            group.update(without_params(self.inner.param_groups[-1]))
