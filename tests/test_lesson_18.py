"""Lesson 18: the sharded optimizer stands in for any of torch's; its labs notice planted faults."""

from pathlib import Path

import pytest

from tests.helpers import SCRIPTS, faulty_lab, torchrun

pytestmark = pytest.mark.slow


def test_it_equals_every_optimizer_of_torch():
    done = torchrun(SCRIPTS / "sharded_optimizers.py", ranks=3)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert sum(line.startswith("equal: ") for line in lines) >= 2 * 12 + 2
    refused = [line for line in lines if line.startswith("refused: ")]
    assert len(refused) == 5
    assert refused[-1] == "refused: the loaded state has parameter groups of other sizes"


@pytest.mark.parametrize(
    ("lab", "old", "new", "told"),
    [
        ("by_hand", "self.mine.grad /= self.n", "pass", "differs by"),
        ("by_hand", "        ring_all_gather(self.flat, self.n)\n", "", "differs by"),
        ("by_hand", "if stage == 1:", "if True:", "AssertionError"),
        ("by_hand", "p.grad = part.view_as(p)", "pass", "all gradients: differs by"),
        ("by_hand", "build([self.mine])", "build(self.params)", "the state covers this rank's chunk"),
        ("memory", "int(way[-1])", "1", "ZeRO-2, 2 ranks: gradients"),
        (
            "memory",
            "net.parameters(), torch.optim.Adam, int",
            "list(net.parameters())[:2], torch.optim.Adam, int",
            "ZeRO-1, 1 ranks: state",
        ),
        ("equal", "/ ranks).backward()", ").backward()", "differs by"),
    ],
)
def test_a_planted_fault_is_noticed(lab: str, old: str, new: str, told: str, tmp_path: Path):
    path = faulty_lab(f"18_{lab}", old, new, tmp_path)
    done = torchrun(path, RANK_BY_RANK_RESULTS=str(tmp_path))
    assert done.returncode == 1
    assert told in done.stdout
