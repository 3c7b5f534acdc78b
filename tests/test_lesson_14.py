"""Lesson 14: how the time of a step on a network is computed from what a way sends."""

from types import ModuleType

import pytest

from shared.runtime.loading import load_file
from tests.helpers import ROOT

DENSE = {"messages": 6.0, "bytes": 1000.0, "steps to target": 10}


pytestmark = pytest.mark.slow  # it imports torch


@pytest.fixture(scope="module")
def ways() -> ModuleType:
    return load_file(ROOT / "labs" / "lab_14_ways.py")


@pytest.mark.parametrize(
    ("latency", "gradient", "row", "expected"),
    [
        (0.0, 0.0, DENSE, 1.0),
        (0.5, 0.0, DENSE, 4.0),
        (0.0, 3.0, DENSE, 4.0),
        (0.0, 3.0, DENSE | {"bytes": 500.0}, 2.5),
        (0.5, 3.0, DENSE | {"messages": 18.0, "bytes": 100.0}, 10.3),
    ],
)
def test_a_step_takes_computation_messages_and_bytes(
    ways: ModuleType, latency: float, gradient: float, row: dict, expected: float
):
    network = ways.Network(latency, gradient)
    assert network.seconds(row, DENSE) == pytest.approx(expected)
    assert network.to_target(row, DENSE) == pytest.approx(10 * expected)


def test_each_way_has_a_kind_and_the_good_ones_are_among_them(ways: ModuleType):
    assert set(ways.GOOD) <= set(ways.WAYS)
    assert set(ways.PACED) <= set(ways.NETWORKS)
    assert len({kind for kind, _ in ways.WAYS.values()}) == 7
