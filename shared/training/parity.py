"""Parity checks: parallel equals single process, or the run fails. Taught in lesson 05."""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from shared.runtime.errors import ParityError

Named = Iterable[tuple[str, torch.Tensor]]


def assert_equal(what: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> float:
    """Return the largest absolute difference of two tensors of the same shape and dtype.

    Raises:
        ParityError: shape or dtype differ, a value is not finite, or the difference exceeds ``tolerance``.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise ParityError(
            f"{what}: {tuple(actual.shape)} {actual.dtype}, expected {tuple(expected.shape)} {expected.dtype}"
        )
    if not (torch.isfinite(actual).all() and torch.isfinite(expected).all()):
        raise ParityError(f"{what}: holds a value that is not finite")
    if actual.numel() == 0:
        return 0.0
    difference = (actual.detach() - expected.detach()).abs().max().item()
    if difference > tolerance:
        raise ParityError(f"{what}: differs by {difference:.1e}, allowed is {tolerance:.0e}")
    return difference


def assert_all_equal(what: str, actual: Named, expected: Named, tolerance: float) -> float:
    """``assert_equal`` for two series of (name, tensor), which must bear the same names in the same order."""
    actual = list(actual)
    expected = list(expected)
    actual_names = [name for name, _ in actual]
    names = [name for name, _ in expected]
    if actual_names != names:
        raise ParityError(f"{what}: has {actual_names}, expected {names}")
    if not names:
        raise ParityError(f"{what}: there is nothing to compare")
    differences = []
    for (name, a), (_, b) in zip(actual, expected, strict=True):
        differences.append(assert_equal(f"{what} {name}", a, b, tolerance))
    return max(differences)


def gradients(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """(name, gradient) of each parameter that has one; a wrapper's ``module.`` prefix is dropped."""
    return [
        (name.removeprefix("module."), p.grad) for name, p in module.named_parameters() if p.grad is not None
    ]


def parameters(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """(name, parameter) of each parameter; a wrapper's ``module.`` prefix is dropped."""
    return [(name.removeprefix("module."), p.detach()) for name, p in module.named_parameters()]


def assert_same_on_every_rank(what: str, tensors: Named) -> None:
    """Compare each tensor with rank 0's, bit for bit. Collective: all ranks must call it.

    Raises:
        ParityError: on every rank, naming the first tensor that differs and the ranks that hold it.
    """
    tensors = list(tensors)
    if not tensors:
        raise ParityError(f"{what}: there is nothing to compare")
    for name, tensor in tensors:
        from_rank_0 = tensor.detach().clone()
        dist.broadcast(from_rank_0, src=0)
        differs = torch.zeros(dist.get_world_size(), device=tensor.device)
        differs[dist.get_rank()] = float(not torch.equal(from_rank_0, tensor.detach()))
        dist.all_reduce(differs)
        if differs.any():
            ranks = differs.nonzero().flatten().tolist()
            raise ParityError(f"{what} {name}: ranks {ranks} differ from rank 0")
