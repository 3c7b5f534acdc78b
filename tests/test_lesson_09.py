"""Lesson 09: the exercise holds the helpers of the lab; the paced wire keeps its time."""

import ast
import time

import pytest

from shared.comm.paced import GBIT, Wire
from tests.helpers import EXERCISE_FOLDER, ROOT

LAB = ROOT / "labs" / "lab_09_overlapped.py"


def test_the_exercise_gives_what_the_lab_has():
    """Both hold the same helpers, for each is to be read and copied by itself."""
    solution = EXERCISE_FOLDER / "09_overlapped_ddp" / "solution.py"
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (LAB, solution)]
    for name in ("broadcast_from_rank_0", "fill_buckets", "Bucket"):
        lab, exercise = [
            next(ast.unparse(node) for node in tree.body if getattr(node, "name", "") == name)
            for tree in trees
        ]
        assert lab == exercise, name


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
