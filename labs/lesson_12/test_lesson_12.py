"""Lesson 12: who waits for whom is found in recorded times."""

import copy

import pytest

from shared.runtime.errors import CourseError
from shared.runtime.loading import load_file
from tests.helpers import ROOT


@pytest.fixture(scope="module")
def skew():
    return load_file(ROOT / "labs" / "lesson_12" / "proof_skew.py")


def recorded() -> list[list[dict]]:
    """Two ranks, two steps of 1 s; rank 1 is ready later."""
    steps = [
        [{"began": 0.0, "ready": 0.2, "done": 1.1}, {"began": 1.1, "ready": 1.3, "done": 2.1}],
        [{"began": 0.0, "ready": 1.0, "done": 1.1}, {"began": 1.1, "ready": 2.0, "done": 2.1}],
    ]
    return copy.deepcopy(steps)


def test_true_times_pass(skew):
    skew.check_order("run", recorded(), every=1, at_least_s=2.0)


def test_a_rank_that_did_not_wait_is_found(skew):
    steps = recorded()
    steps[0][1]["done"] = 1.9
    with pytest.raises(CourseError, match="run, step 1: a rank was done before the last one was ready"):
        skew.check_order("run", steps, every=1, at_least_s=2.0)
    skew.check_order("run", steps[::-1], every=3, at_least_s=2.0)  # nothing to wait for


def test_a_run_that_was_too_fast_is_found(skew):
    with pytest.raises(CourseError, match=r"run: 2.100 s, but the sleeps alone take 2.200 s"):
        skew.check_order("run", recorded(), every=1, at_least_s=2.2)


@pytest.mark.parametrize(("every", "expected"), [(1, 0.48), (2, 0.28)])
def test_the_rule_on_paper(skew, every: int, expected: float):
    cfg = skew.Config(rounds=2, fast_s=0.02, slow_s=0.12)
    assert skew.least_s(skew.in_turns, every, cfg, ranks=2) == pytest.approx(expected)
    assert skew.least_s(skew.always_one, every, cfg, ranks=2) == pytest.approx(0.48)
