"""Parity checks find each kind of difference; bytes are counted where they are sent, and on the wire."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from shared.comm.traffic import Sent, TrafficError, assert_ring_traffic
from shared.runtime import results
from shared.runtime.errors import ParityError
from shared.training import parity
from tests.helpers import SCRIPTS, torchrun

ONES = torch.ones(2, 3)
RANKS = 3
LARGE_BYTES = 4_000_000


def one_element(value: float) -> torch.Tensor:
    tensor = ONES.clone()
    tensor[1, 2] = value
    return tensor


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([(24, 1)] * 5, "messages sent: 5; a ring of 4 sends 6"),
        ([(24, 1)] * 5 + [(24, 2)], "more than one neighbour"),
        ([(96, 1)] * 6, "a message has 96 bytes"),
        ([(20, 1)] * 6, "bytes sent: 120; a ring sends 144"),
    ],
)
def test_what_is_no_ring_is_found(messages: list[tuple[int, int]], told: str):
    with pytest.raises(TrafficError, match=told):
        assert_ring_traffic(Sent(messages), 96, 4)


def test_uneven_chunks_are_a_ring():
    elements = (251, 251, 250, 250, 251, 251)  # of 1,002 numbers on 4 ranks, what rank 1 sends
    assert_ring_traffic(Sent([(8 * count, 2) for count in elements]), 8 * 1002, 4)


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


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict]]:
    """What each of three ranks found."""
    folder: Path = tmp_path_factory.mktemp("results")
    done = torchrun(SCRIPTS / "traffic_and_parity.py", ranks=RANKS, RANK_BY_RANK_RESULTS=str(folder))
    assert done.returncode == 0, done.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK_BY_RANK_RESULTS", str(folder))
        yield results.load_results("traffic_and_parity", RANKS)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by_isend", "by_send", "by_batch"])
def test_each_message_is_counted_once(way: str, recorded: list[dict]):
    assert [rank[way] for rank in recorded] == [[[4000, 1]], [[4000, 2]], [[4000, 0]]]


@pytest.mark.slow
def test_a_collective_is_no_message(recorded: list[dict]):
    assert [rank["all_reduce"] for rank in recorded] == [[], [], []]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO of this form is Linux's")
@pytest.mark.parametrize(
    ("what", "expected"),
    [("isend", LARGE_BYTES), ("all_reduce", 2 * (RANKS - 1) / RANKS * LARGE_BYTES)],
)
def test_the_wire_carries_what_theory_says(what: str, expected: float, recorded: list[dict]):
    for rank in recorded:
        assert rank[f"wire of {what}"] == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_every_rank_learns_who_differs(recorded: list[dict]):
    assert {rank["differing"] for rank in recorded} == {"planted other: ranks [2] differ from rank 0"}
