"""Schedules: what is wrong with one is said in words, and what it takes is what the formula says."""

from itertools import product

import pytest

from shared.runtime.errors import CourseError
from shared.training.schedules import Action, idle_while_at_work, simulate
from shared.training.timeline import bubble


def gpipe(ranks: int, micro_batches: int) -> list[list[Action]]:
    numbers = range(micro_batches)
    return [[(kind, rank, number) for kind in "FB" for number in numbers] for rank in range(ranks)]


def test_the_bubble_is_that_of_the_formula():
    for ranks, micro_batches in product((1, 2, 3, 4, 8), (1, 2, 5, 16)):
        simulation = simulate(gpipe(ranks, micro_batches), micro_batches)
        expected = (ranks - 1) / (micro_batches + ranks - 1)
        assert bubble(simulation.spans, ranks) == pytest.approx(expected)
        assert simulation.peak_live == [micro_batches] * ranks


def test_idle_while_at_work_is_what_lies_between_the_first_and_the_last_action():
    spans = simulate(gpipe(2, 1), 1).spans  # F on both, B on both
    assert idle_while_at_work(spans, 0) == 3.0
    assert idle_while_at_work(spans, 1) == 0.0


@pytest.mark.parametrize(
    ("of_rank_0", "of_rank_1", "told"),
    [
        ([("F", 0, 0)], [("F", 1, 0), ("B", 1, 0)], "rank 0 never does B of micro-batch 0 in stage 0"),
        ([("F", 0, 0), ("F", 0, 0), ("B", 0, 0)], [("F", 1, 0), ("B", 1, 0)], "rank 0 does F of .* twice"),
        ([("F", 0, 0), ("B", 0, 1)], [("F", 1, 0), ("B", 1, 0)], "there is no B of micro-batch 1"),
        ([("X", 0, 0), ("F", 0, 0)], [("F", 1, 0), ("B", 1, 0)], "there is no X of micro-batch 0"),
        (
            [("F", 0, 0), ("B", 0, 0), ("B", 1, 0)],
            [("F", 1, 0)],
            "stage 1 lies on rank 0, so rank 1 has none",
        ),
        (
            [("F", 0, 0), ("B", 0, 0), ("I", 0, 0), ("W", 0, 0)],
            [("F", 1, 0), ("B", 1, 0)],
            "a B does the work of I and W already",
        ),
        ([("B", 0, 0), ("F", 0, 0)], [("F", 1, 0), ("B", 1, 0)], "rank 0 is to do B .* before F"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(of_rank_0: list[Action], of_rank_1: list[Action], told: str):
    with pytest.raises(CourseError, match=told):
        simulate([of_rank_0, of_rank_1], 1)


def test_ranks_that_wait_for_each_other_are_a_deadlock():
    eager = [("F", 1, 0), ("F", 1, 1), ("B", 1, 0), ("B", 1, 1)]
    patient = [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)]
    with pytest.raises(CourseError, match="deadlock: rank 0 waits with B .* rank 1 waits with F"):
        simulate([patient, eager], 2)
