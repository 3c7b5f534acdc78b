"""Lesson 09: the paced wire keeps its time."""

import time

import pytest

from shared.comm.paced import GBIT, Wire


def test_the_wire_takes_what_the_model_says():
    wire = Wire(alpha_s=1e-3, bytes_per_s=GBIT)
    assert wire.seconds(125_000, ranks=2) == pytest.approx(2e-3 + 1e-3)
    assert wire.seconds(125_000, ranks=4) == pytest.approx(6e-3 + 1.5e-3)
    assert wire.seconds(125_000, ranks=1) == 0
    assert Wire().seconds(125_000, ranks=4) == 0


def test_the_wire_carries_one_message_at_a_time():
    wire = Wire(alpha_s=0.5, bytes_per_s=GBIT)
    before = time.perf_counter()
    first, second = wire.send(1000, 2), wire.send(1000, 2)
    assert before <= first.launched == first.start < first.end == second.start
    assert second.end - second.start == pytest.approx(wire.seconds(1000, 2))
