"""The DDPs of lesson 09 stand in for torch's; the paced wire keeps its time."""

import ast
import time

import pytest

from shared.comm.paced import GBIT, Wire
from tests.helpers import EXERCISE_FOLDER, ROOT, SCRIPTS
from tests.launch import warm_torchrun

LAB = ROOT / "labs" / "lab_09_overlapped.py"


@pytest.mark.slow
def test_ours_are_the_same_as_torchs_ddp():
    done = warm_torchrun(SCRIPTS / "ddp_by_hand.py", ranks=3)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert sum(line.startswith("6 steps equal to torch's DDP") for line in lines) == 5
    assert [line for line in lines if line.startswith("same as DDP")] == [
        f"same as DDP with bucket_cap_mb {cap}" for cap in (None, 0.001, 0.002)
    ]


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
