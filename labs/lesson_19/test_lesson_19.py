"""Lesson 19: FSDP by hand equals DDP on other numbers of ranks."""

from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.launch import warm_torchrun

pytestmark = pytest.mark.slow

LABS = ROOT / "labs"


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_units_by_hand_equal_ddp(ranks: int, tmp_path: Path):
    done = warm_torchrun(
        LABS / "lesson_19" / "proof_by_hand.py", ranks=ranks, RANK_BY_RANK_RESULTS=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout
    assert "5 steps equal to DDP and to one process" in done.stdout


@pytest.mark.parametrize("ranks", [3, 5])
def test_padding_does_not_count_as_whole_parameters(ranks: int, tmp_path: Path):
    done = warm_torchrun(
        LABS / "lesson_19" / "proof_units.py", ranks=ranks, RANK_BY_RANK_RESULTS=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout
