"""Lesson 19: FSDP by hand equals DDP on other numbers of ranks; its labs notice planted faults."""

from pathlib import Path

import pytest

from tests.helpers import ROOT, faulty_lab, torchrun

pytestmark = pytest.mark.slow

LABS = ROOT / "labs"
UNSCALED = "        mine /= dist.get_world_size()  # gloo has no average\n"
EARLY = 'given if moment == "before" else model.parameters()'


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_units_by_hand_equal_ddp(ranks: int, tmp_path: Path):
    done = torchrun(LABS / "lab_19_unit.py", ranks=ranks, RANK_BY_RANK_RESULTS=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "5 steps equal to DDP and to one process" in done.stdout


@pytest.mark.parametrize("ranks", [3, 5])
def test_padding_does_not_count_as_whole_parameters(ranks: int, tmp_path: Path):
    done = torchrun(LABS / "lab_19_units.py", ranks=ranks, RANK_BY_RANK_RESULTS=str(tmp_path))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("lab", "old", "new", "told"),
    [
        ("unit", UNSCALED, "", "step 0, unit 2, DDP: gradient: differs by"),
        ("unit", "flat.chunk(", "flat.flip(0).chunk(", "step 0, unit 2, DDP: "),
        (
            "fsdp",
            "broadcast_from_rank_0(net.parameters(), mesh.get_group())",
            "pass",
            "fsdp2, 2 ranks, step 0: ",
        ),
        ("fsdp", "wrap(net, mesh)", "ddp(net, mesh)", "fsdp2 on 2 ranks: 2.000 times"),
        ("units", "1 + (2 if again else 1) * len(units)", "1 + 2 * len(units)", "by the formula"),
        ("units", "root + max(map(size, units), default=0)", "size(net)", "by the formula"),
        ("details", EARLY, "model.parameters()", "AssertionError"),
        ("details", "clip_grad_norm_(old.parameters(), ", "old.clip_grad_norm_(", "above the limit"),
        ("state", "if group.rank > 0:", "if group.rank > 9:", "one rank cannot gather alone"),
    ],
)
def test_a_planted_fault_is_noticed(lab: str, old: str, new: str, told: str, tmp_path: Path):
    path = faulty_lab(f"19_{lab}", old, new, tmp_path)
    done = torchrun(path, RANK_BY_RANK_RESULTS=str(tmp_path))
    assert done.returncode == 1
    assert told in done.stdout
