"""Lesson 23: a parameter server's log that shows trainers in turns, or a single stale one, is an error."""

import pytest

from shared.runtime.errors import CourseError
from shared.runtime.loading import load_file
from tests.helpers import ROOT


@pytest.mark.parametrize(
    ("versions", "trainers", "said"),
    [
        ([0, 0, 1, 2], 2, None),
        ([0, 1, 2, 3], 2, "0 of 4 updates are stale: the trainers hardly ran together"),
        ([0, 1, 2, 3], 1, None),
        ([0, 0, 2, 3], 1, "1 updates of a single trainer are stale"),
    ],
    ids=["together", "in turns", "alone", "alone and stale"],
)
def test_trainers_that_take_turns_are_found(versions: list[int], trainers: int, said: str | None):
    staleness = load_file(ROOT / "labs" / "lab_23_parameter_server.py", "parameter_server").staleness
    log = [(1 + number % trainers, number, version) for number, version in enumerate(versions)]
    if said is None:
        assert staleness(log, trainers) == [number - version for number, version in enumerate(versions)]
        return
    with pytest.raises(CourseError, match=said):
        staleness(log, trainers)
