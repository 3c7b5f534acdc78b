"""Lesson 04: the plain lab has a name for each number, however many ranks there are."""

import pytest

from lab_04_collectives import labels


@pytest.mark.parametrize("n", [2, 8, 9, 10, 16, 64, 128])
def test_each_number_has_one_name_on_any_number_of_ranks(n: int):
    names = labels(n)
    assert len(names) == n * n + n  # a number of each rank in each place, and the sums
    assert len(set(names.values())) == len(names)
