"""Parity checks find each kind of difference."""

import pytest
import torch
from torch import nn

from shared.runtime.errors import ParityError
from shared.training import parity

ONES = torch.ones(2, 3)


def one_element(value: float) -> torch.Tensor:
    tensor = ONES.clone()
    tensor[1, 2] = value
    return tensor


def test_nothing_to_compare_is_no_proof():
    with pytest.raises(ParityError, match="nothing to compare"):
        parity.assert_same_on_every_rank("parameters", [])


def test_equal_tensors_return_their_difference():
    assert parity.assert_equal("x", ONES, ONES.clone(), 0.0) == 0.0
    assert parity.assert_equal("x", one_element(1.25), ONES, 0.25) == 0.25
    assert parity.assert_equal("x", torch.ones(0), torch.ones(0), 0.0) == 0.0
    assert parity.assert_equal("x", ONES.long(), ONES.long(), 0) == 0


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        (one_element(1.5), "x: differs by 5.0e-01, allowed is 1e-06"),
        (one_element(0.5), "x: differs by 5.0e-01"),
        (ONES.flatten(), r"x: \(6,\) torch.float32, expected \(2, 3\)"),
        (ONES[:1], r"x: \(1, 3\)"),
        (ONES.double(), "x: .* torch.float64, expected .* torch.float32"),
        (one_element(float("nan")), "x: holds a value that is not finite"),
        (one_element(float("inf")), "x: holds a value that is not finite"),
    ],
    ids=["larger", "smaller", "flat", "broadcast", "dtype", "nan", "inf"],
)
def test_a_difference_is_found(actual: torch.Tensor, message: str):
    with pytest.raises(ParityError, match=message):
        parity.assert_equal("x", actual, ONES, 1e-6)
    if actual.shape == ONES.shape and actual.dtype == ONES.dtype:
        with pytest.raises(ParityError):
            parity.assert_equal("x", ONES, actual, 1e-6)


def test_nan_equals_nothing_not_even_nan():
    with pytest.raises(ParityError, match="not finite"):
        parity.assert_equal("x", one_element(float("nan")), one_element(float("nan")), 1.0)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        ([("a", ONES)], [("b", ONES)], r"w: has \['a'\], expected \['b'\]"),
        ([("a", ONES)], [("a", ONES), ("b", ONES)], "w: has"),
        ([("b", ONES), ("a", ONES)], [("a", ONES), ("b", ONES)], "w: has"),
        ([], [], "w: there is nothing to compare"),
        ([("a", ONES), ("b", one_element(3))], [("a", ONES), ("b", ONES)], "w b: differs by 2"),
    ],
)
def test_a_difference_in_a_series_is_found(actual: list, expected: list, message: str):
    with pytest.raises(ParityError, match=message):
        parity.assert_all_equal("w", actual, expected, 1e-6)


def test_a_series_returns_its_largest_difference():
    pairs = [("a", ONES), ("b", one_element(1.25))]
    assert parity.assert_all_equal("w", iter(pairs), iter([("a", ONES), ("b", ONES)]), 1.0) == 0.25


def test_gradients_and_parameters_bear_plain_names():
    wrapper = nn.Module()
    wrapper.module = nn.Linear(2, 2)
    wrapper.module.bias.requires_grad_(False)
    wrapper.module(torch.ones(1, 2)).sum().backward()
    assert [name for name, _ in parity.gradients(wrapper)] == ["weight"]
    assert [name for name, _ in parity.parameters(wrapper)] == ["weight", "bias"]
    assert not any(tensor.requires_grad for _, tensor in parity.parameters(wrapper))
