"""Lesson 04: the plain lab has a name for each number, and refuses pieces of different sizes."""

import pytest
import torch
import torch.distributed as dist

from lab_04_collectives import check_divides, labels


@pytest.mark.parametrize("n", [2, 8, 9, 10, 16, 64, 128])
def test_each_number_has_one_name_on_any_number_of_ranks(n: int):
    names = labels(n)
    assert len(names) == n * n + n  # a number of each rank in each place, and the sums
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("shape", [(), (4,), (7, 3)])
def test_what_does_not_divide_into_equal_pieces_is_refused(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dist, "get_world_size", lambda _: 3)
    check_divides(torch.ones(6, 4))
    with pytest.raises(ValueError, match="does not divide into 3 equal pieces"):
        check_divides(torch.ones(shape))
