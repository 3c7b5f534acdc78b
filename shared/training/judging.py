"""The comparison of the checks: what a learner's tensor is, and which mistake leads to it."""

import torch

from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong
from shared.training.parity import assert_equal


def compare(
    what: str,
    found: object,
    expected: torch.Tensor,
    guesses: dict[str, torch.Tensor],
    tolerance: float,
) -> None:
    """Compare shapes and dtypes, then values.

    Args:
        guesses: {what was wrong: the values that it leads to}.
        tolerance: largest absolute difference.

    Raises:
        Wrong: they differ; it tells the first guess that fits.
    """
    if not isinstance(found, torch.Tensor):
        raise Wrong(f"{what} is {type(found).__name__}, expected a tensor")
    try:
        assert_equal(what, found, expected, tolerance)
    except ParityError as error:
        for guess, wrong in guesses.items():
            same_kind = (wrong.shape, wrong.dtype) == (found.shape, found.dtype)
            if same_kind and torch.allclose(found, wrong, rtol=0, atol=tolerance):
                raise Wrong(f"{what} {guess}") from None
        raise Wrong(str(error)) from None
