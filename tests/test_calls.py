"""Calls of collectives are counted where they are made, and the functions come back as they were."""

import pytest
import torch.distributed as dist

from shared.comm.calls import count_calls


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list:
    """What reached the functions themselves, in order."""
    made = []
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, lambda *args, name=name, **kwargs: made.append((name, args, kwargs)))
    return made


def test_each_call_is_counted_and_made(made: list):
    with count_calls("all_reduce", "broadcast") as calls:
        dist.all_reduce(1, group=None)
        dist.all_reduce(2)
        dist.broadcast(3, src=0)
    assert calls == {"all_reduce": 2, "broadcast": 1}
    assert made == [
        ("all_reduce", (1,), {"group": None}),
        ("all_reduce", (2,), {}),
        ("broadcast", (3,), {"src": 0}),
    ]


def test_only_named_calls_inside_are_counted(made: list):
    before = dist.all_reduce
    with count_calls("all_reduce") as calls:
        dist.broadcast(1)
    dist.all_reduce(2)
    assert calls == {"all_reduce": 0}
    assert dist.all_reduce is before


def test_an_error_puts_the_functions_back(made: list):
    before = dist.all_reduce
    with pytest.raises(ZeroDivisionError), count_calls("all_reduce"):
        raise ZeroDivisionError
    assert dist.all_reduce is before


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError), count_calls("all_redouce"):
        pass
