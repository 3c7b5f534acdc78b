"""Any optimizer of torch.optim, its state and its gradients divided among ranks. Taught in lesson 18."""

import weakref
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from shared.comm.broadcast import broadcast_from_rank_0
from shared.lesson_18 import shards
from shared.lesson_18.shards import params_of, without_params

UNFIT = (torch.optim.LBFGS, torch.optim.SparseAdam)  # one step for all parameters together; sparse gradients


class ShardedOptimizer(shards.FullState):
    """ZeRO-1 or ZeRO-2 around an optimizer class: each rank keeps the state of the parameters that it owns.

    It averages the gradients over the ranks, so no DDP is needed. Construct and ``step`` it on all ranks.

    Args:
        params: as for any optimizer, in the same order on each rank. Their values become rank 0's.
        optimizer_class: such as ``torch.optim.Adam``. LBFGS and SparseAdam are refused.
        stage: 1, ``step()`` averages the gradients and each rank keeps all of them. Before it ``p.grad`` is
            this rank's own, unless DDP has averaged it, so clip by ``max_norm``. 2, they are averaged during
            backward, and only the owner keeps its own: ``p.grad`` is None after backward, the owner's mean is
            ``mean[p]``. Then each rank must use some parameter in each backward. DDP must not be around the
            model: ``step()`` refuses.
        process_group: the ranks that share; None for all.
        bucket_mb: gradients and parameters travel in buckets of about so many MiB, each of one owner.
        max_norm: clip the norm of all averaged gradients to this, as ``clip_grad_norm_`` does.
        options: those of the optimizer class. ``param_groups`` may be changed between steps as usual.

    Source: Rajbhandari et al., ZeRO, 2020, arXiv 1910.02054; whole parameters as in ZeroRedundancyOptimizer.
    """

    def __init__(
        self,
        params: Iterable,
        optimizer_class: type[torch.optim.Optimizer],
        stage: int = 1,
        process_group: dist.ProcessGroup | None = None,
        bucket_mb: float = 4.0,
        max_norm: float | None = None,
        **options,
    ) -> None:
        if stage not in (1, 2) or issubclass(optimizer_class, UNFIT):
            raise ValueError(f"stage {stage} of {optimizer_class.__name__} is not supported")
        self.stage = stage
        self.group = process_group
        self.cap = bucket_mb * 2**20  # bytes
        self.max_norm = max_norm
        self.rank = dist.get_rank(process_group)
        self.ranks = dist.get_world_size(process_group)
        self.owner: dict[torch.Tensor, int] = {}  # a rank of the group
        self.load = [0] * self.ranks  # bytes of the trainable parameters, by owner
        self.mean: dict[torch.Tensor, torch.Tensor] = {}  # stage 2: averaged gradients of own parameters
        self.averaged: set[torch.Tensor] = set()  # since the last step, with a gradient of this rank
        self.arrived: set[torch.Tensor] = set()  # stage 2: gradients of this backward that are complete
        self.hooked: set[torch.Tensor] = set()
        self.sent_buckets = 0  # stage 2: in this backward
        self.constructed = False
        super().__init__(params, {})
        self._assign(params_of(self.param_groups))
        self.inner = optimizer_class([self._own(group) for group in self.param_groups], **options)
        self.defaults = self.inner.defaults
        self.state = self.inner.state
        for group, own in zip(self.param_groups, self.inner.param_groups, strict=True):
            group.update(without_params(own))
        self.constructed = True

    def _assign(self, params: list[torch.Tensor]) -> None:
        """Give each parameter to the rank with the fewest bytes so far, the largest parameter first."""
        for p in sorted(params, key=lambda p: p.nbytes, reverse=True):
            owner = self.load.index(min(self.load))
            self.owner[p] = owner
            if p.requires_grad:
                self.load[owner] += p.nbytes
        self.mine = {p for p, rank in self.owner.items() if rank == self.rank}
        self._make_buckets()
        broadcast_from_rank_0(params, self.group)

    def _own(self, group: dict) -> dict:
        """A parameter group with only those parameters that this rank owns, maybe none."""
        return without_params(group) | {"params": [p for p in group["params"] if p in self.mine]}

    def _make_buckets(self) -> None:
        """Cut trainable parameters into buckets, last parameter first: its gradient is complete first."""
        self.trainable = [p for p in reversed(params_of(self.param_groups)) if p.requires_grad]
        self.buckets = shards.fill_buckets(self.trainable, self.owner, self.cap)
        if self.stage == 2:
            for p in self.trainable:
                self._hook(p)

    def _hook(self, p: torch.Tensor) -> None:
        """Stage 2: have autograd tell us when the gradient of ``p`` is complete, once in each backward."""
        if p in self.hooked:
            return
        self.hooked.add(p)
        optimizer = weakref.ref(self)  # a hook that held self would make a reference cycle

        def on_complete(p: torch.Tensor) -> None:
            alive = optimizer()
            if alive is not None:
                alive._mark_complete(p)

        p.register_post_accumulate_grad_hook(on_complete)

    def _mark_complete(self, p: torch.Tensor) -> None:
        """Stage 2: send each bucket whose gradients are complete, the buckets in turn."""
        if not self.arrived:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        self.arrived.add(p)
        while self.sent_buckets < len(self.buckets):
            bucket = self.buckets[self.sent_buckets]
            if not self.arrived.issuperset(bucket):
                break
            self._average(bucket)
            self.sent_buckets += 1

    def _end_backward(self) -> None:
        """Stage 2: send the buckets that hold something which this rank did not use."""
        for bucket in self.buckets[self.sent_buckets :]:
            self._average(bucket)
        self.arrived = set()
        self.sent_buckets = 0

    @torch.no_grad()
    def _average(self, bucket: list[torch.Tensor]) -> None:
        """Replace gradients by their mean over the ranks: stage 1 on each rank, stage 2 on the owner."""
        gradients = []
        for p in bucket:
            if p.grad is None:
                gradients.append(torch.zeros_like(p).flatten())
            else:
                gradients.append(p.grad.flatten())
                self.averaged.add(p)
        flat = torch.cat(gradients)
        if self.stage == 1:
            dist.all_reduce(flat, group=self.group)
        else:
            dist.reduce(flat, group=self.group, group_dst=self.owner[bucket[0]])
        flat /= self.ranks
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            mean = part.view_as(p)
            if self.stage == 1 and p.grad is not None:
                p.grad.copy_(mean)
            elif self.stage == 1:
                p.grad = mean
            else:
                p.grad = None
                if p in self.mine:
                    self.mean[p] = self.mean[p] + mean if p in self.mean else mean

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Average what is not averaged yet, step on the own parameters, send them to all. Collective."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if {p for p in self.owner if p.requires_grad} != set(self.trainable):
            self._make_buckets()  # something was frozen or thawed
        used = self._average_the_rest()
        for p in self.trainable:
            if p not in used:
                p.grad = None  # what no rank used, the optimizer leaves alone
            elif self.stage == 2:
                p.grad = self.mean.get(p)
        if self.max_norm is not None:
            shards.clip(self.trainable, self.mine, self.max_norm, self.group)
        for own, group in zip(self.inner.param_groups, self.param_groups, strict=True):
            own.update(without_params(group))  # a scheduler may have changed them
        self.inner.step()
        for bucket in self.buckets:
            if not used.isdisjoint(bucket):
                shards.send_bucket(bucket, self.owner[bucket[0]], self.group)
        self.full = None
        self.averaged = set()
        if self.stage == 2:
            self.zero_grad()  # they are used up
        return loss

    def _average_the_rest(self) -> set[torch.Tensor]:
        """Average the gradients that are still there; return the parameters that some rank has used.

        The ranks agree first: a rank that did not use a parameter takes part in its average all the same.
        """
        here = [p.grad is not None for p in self.trainable]
        again = [p for p, has in zip(self.trainable, here, strict=True) if has and p in self.averaged]
        if self.stage == 2 and again:
            raise RuntimeError(
                "stage 2 averaged gradients that are back again: is DDP around the model, too?"
            )
        used_here = [has or p in self.averaged for p, has in zip(self.trainable, here, strict=True)]
        flags = torch.tensor([used_here, here], dtype=torch.int32, device=next(iter(self.owner)).device)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
        used_anywhere, waiting_anywhere = flags.tolist()
        used = {p for p, flag in zip(self.trainable, used_anywhere, strict=True) if flag}
        waiting = {p for p, flag in zip(self.trainable, waiting_anywhere, strict=True) if flag}
        for bucket in self.buckets:
            if not waiting.isdisjoint(bucket):
                self._average(bucket)
        return used

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.mean = {}
        self.averaged = set()
        self.arrived = set()
        self.sent_buckets = 0

    def add_param_group(self, param_group: dict) -> None:
        """As in any optimizer, on all ranks."""
        super().add_param_group(param_group)
        if self.constructed:
            group = self.param_groups[-1]
            self._assign(group["params"])
            self.inner.add_param_group(self._own(group))
            group.update(without_params(self.inner.param_groups[-1]))
