"""What a sharded optimizer needs: buckets, clipping, and its state in one piece. Taught in lesson 18."""

from collections.abc import Iterable

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
    buckets, growing = [], {}
    for p in params:
        kind = (owner[p], p.dtype, p.device)
        growing.setdefault(kind, []).append(p)
        if sum(q.nbytes for q in growing[kind]) >= cap:
            buckets.append(growing.pop(kind))
    return buckets + list(growing.values())


@torch.no_grad()
def send_bucket(bucket: list[torch.Tensor], source: int, group: dist.ProcessGroup | None) -> None:
    """Overwrite the tensors by those of the group's rank ``source``, in one broadcast. Collective."""
    flat = torch.cat([p.flatten() for p in bucket])
    dist.broadcast(flat, group=group, group_src=source)
    for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.copy_(part.view_as(p))


def clip(
    params: list[torch.Tensor], mine: set[torch.Tensor], max_norm: float, group: dist.ProcessGroup | None
):
    """As clip_grad_norm_, for gradients of which each rank counts its own, ``mine``. Collective."""
    here = [p.grad for p in params if p.grad is not None]
    own = [p.grad for p in params if p.grad is not None and p in mine]
    total = torch.zeros((), dtype=torch.float64, device=params[0].device)
    for gradient in own:
        total += gradient.square().sum()
    dist.all_reduce(total, group=group)
    scale = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1)
    for gradient in here:
        gradient *= scale.to(gradient.dtype)


class FullState(torch.optim.Optimizer):
    """An optimizer whose state is spread over ranks, saved and loaded as if it were in one piece.

    ``inner`` is the optimizer of the parameters that this rank owns, ``group`` the process group, and
    ``param_groups`` holds the parameters of all ranks.
    """

    inner: torch.optim.Optimizer | None = None
    group: dist.ProcessGroup | None = None
    full: dict | None = None  # the state of all, as of the last step

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Bring all of the state to rank ``to``, so that ``state_dict()`` works there. Collective."""
        position = {p: i for i, p in enumerate(params_of(self.param_groups))}
        mine = {position[p]: _to_cpu(state) for p, state in self.inner.state.items()}
        at_target = dist.get_rank(self.group) == to
        parts = [None] * dist.get_world_size(self.group) if at_target else None
        dist.gather_object(mine, parts, group=self.group, group_dst=to)
        self.full = dict(sorted((i, s) for part in parts for i, s in part.items())) if at_target else None

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
        groups = [
            without_params(g) | {"params": [position[p] for p in g["params"]]} for g in self.param_groups
        ]
        return {"state": self.full, "param_groups": groups}

    def load_state_dict(self, state_dict: dict) -> None:
        """Take over the own part of a full state, also of a plain optimizer's. On all ranks.

        Raises:
            ValueError: its groups have other numbers of parameters.
        """
        saved = state_dict["param_groups"]
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("the loaded state has parameter groups of other sizes")
        own = {p: i for i, p in enumerate(params_of(self.inner.param_groups))}
        pairs = zip(params_of(saved), params_of(self.param_groups), strict=True)
        state = {own[p]: state_dict["state"][n] for n, p in pairs if p in own and n in state_dict["state"]}
        local = [
            without_params(option) | {"params": [own[p] for p in g["params"]]}
            for option, g in zip(saved, self.inner.param_groups, strict=True)
        ]
        self.inner.load_state_dict({"state": state, "param_groups": local})
        self.state = self.inner.state
        for group, option in zip(self.param_groups, saved, strict=True):
            group.update(without_params(option))


def _to_cpu(state: dict) -> dict:
    return {key: value.cpu() if torch.is_tensor(value) else value for key, value in state.items()}
