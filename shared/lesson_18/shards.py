"""What a sharded optimizer needs: buckets, clipping, and its state in one piece. Taught in lesson 18."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


def without_params(group: dict) -> dict:
    """The options of a parameter group."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def params_of(groups: list[dict]) -> list[torch.Tensor]:
    return [p for group in groups for p in group["params"]]


def fill_buckets(
    params: Iterable[torch.Tensor], owner: dict[torch.Tensor, int], cap: float
) -> list[list[torch.Tensor]]:
    """Buckets of one owner, dtype and device each, closed when they reach ``cap`` bytes."""
    full: list[list[torch.Tensor]] = []
    growing: dict[tuple, list[torch.Tensor]] = {}
    for p in params:
        kind = (owner[p], p.dtype, p.device)
        bucket = growing.setdefault(kind, [])
        bucket.append(p)
        if sum(q.nbytes for q in bucket) >= cap:
            full.append(growing.pop(kind))
    return full + list(growing.values())


@torch.no_grad()
def send_bucket(bucket: list[torch.Tensor], source: int, group: dist.ProcessGroup | None) -> None:
    """Overwrite the tensors by those of the group's rank ``source``, in one broadcast. Collective."""
    flat = torch.cat([p.flatten() for p in bucket])
    dist.broadcast(flat, group=group, group_src=source)
    for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.copy_(part.view_as(p))


def clip(
    params: list[torch.Tensor], mine: set[torch.Tensor], max_norm: float, group: dist.ProcessGroup | None
) -> None:
    """As clip_grad_norm_, for gradients of which each rank counts its own, ``mine``. Collective."""
    total = torch.zeros((), dtype=torch.float64, device=params[0].device)
    for p in params:
        if p.grad is not None and p in mine:
            total += p.grad.square().sum()
    dist.all_reduce(total, group=group)
    scale = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1)
    for p in params:
        if p.grad is not None:
            p.grad *= scale.to(p.grad.dtype)


class FullState(torch.optim.Optimizer):
    """An optimizer whose state is spread over ranks, saved and loaded as if it were in one piece.

    Attributes:
        inner: the optimizer of the parameters that this rank owns.
        group: the process group; None for all ranks.
        full: the state of all parameters as of the last step, where it has been consolidated.
        param_groups: hold the parameters of all ranks.
    """

    inner: torch.optim.Optimizer
    group: dist.ProcessGroup | None = None
    full: dict[int, dict] | None = None

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Bring all of the state to rank ``to``, so that ``state_dict()`` works there. Collective."""
        position = {p: i for i, p in enumerate(params_of(self.param_groups))}
        mine = {position[p]: _to_cpu(state) for p, state in self.inner.state.items()}
        parts: list[Any] | None = None
        if dist.get_rank(self.group) == to:
            parts = [None] * dist.get_world_size(self.group)
        dist.gather_object(mine, parts, group=self.group, group_dst=to)
        if parts is None:
            self.full = None
        else:
            joined = {index: state for part in parts for index, state in part.items()}
            self.full = dict(sorted(joined.items()))

    def state_dict(self) -> dict:
        """What the plain optimizer's would be. It can be loaded on any number of ranks, or by that one.

        Raises:
            RuntimeError: without ``consolidate_state_dict()`` on all ranks since the last step.
        """
        if self.full is None:
            raise RuntimeError(
                "no full state here: call consolidate_state_dict() on all ranks after the last step"
            )
        position = {p: i for i, p in enumerate(params_of(self.param_groups))}
        groups = []
        for group in self.param_groups:
            groups.append(without_params(group) | {"params": [position[p] for p in group["params"]]})
        return {"state": self.full, "param_groups": groups}

    def load_state_dict(self, state_dict: dict) -> None:
        """Take over the own part of a full state, also of a plain optimizer's. On all ranks.

        Raises:
            ValueError: its groups have other numbers of parameters.
        """
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the loaded state has parameter groups of other sizes")
        own = {p: i for i, p in enumerate(params_of(self.inner.param_groups))}
        state = {}
        for number, p in zip(params_of(saved), params_of(self.param_groups), strict=True):
            if p in own and number in state_dict["state"]:
                state[own[p]] = state_dict["state"][number]
        groups = []
        for options, group in zip(saved, self.inner.param_groups, strict=True):
            groups.append(without_params(options) | {"params": [own[p] for p in group["params"]]})
        self.inner.load_state_dict({"state": state, "param_groups": groups})
        self.state = self.inner.state
        for group, options in zip(self.param_groups, saved, strict=True):
            group.update(without_params(options))


def _to_cpu(state: dict) -> dict:
    return {key: value.cpu() if torch.is_tensor(value) else value for key, value in state.items()}
