"""Checkpoints keep their word for each parallelism, and for what lies about in a run's folder."""

from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.launch import warm_torchrun

PROGRAM = Path(__file__).with_name("parallelisms.py")
LABS = str(ROOT / "labs")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "stages", "experts", "tensor parallel"])
def test_each_parallelism_is_resumed_also_on_another_number_of_ranks(kind: str, tmp_path: Path):
    saved = warm_torchrun(PROGRAM, kind, tmp_path, PYTHONPATH=LABS)
    assert saved.returncode == 0, saved.stdout
    resumed = warm_torchrun(PROGRAM, kind, tmp_path, PYTHONPATH=LABS)
    assert resumed.returncode == 0, resumed.stdout
    assert "values equal; each rank's own numbers: True" in resumed.stdout, resumed.stdout
    other = warm_torchrun(PROGRAM, kind, tmp_path, ranks=1 if kind == "stages" else 4, PYTHONPATH=LABS)
    assert other.returncode == 0, other.stdout
    assert "values equal; each rank's own numbers: False" in other.stdout, other.stdout
    [line] = [line for line in other.stdout.splitlines() if "numbers of" in line]
    assert line.startswith("step_00000003 has numbers of each of 2 ranks: ")


def test_what_has_one_name_and_other_values_on_each_rank_is_refused_before_it_is_lost(tmp_path: Path):
    done = warm_torchrun(PROGRAM, "nameless", tmp_path, PYTHONPATH=LABS)
    assert done.returncode == 2, done.stdout
    assert "expert.weight differs by rank, and a checkpoint keeps one tensor of a name: " in done.stdout
    assert not list(tmp_path.glob("step_*"))
