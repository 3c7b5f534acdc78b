"""What the lessons build keeps its promises behind an interface that is not ours."""

import pytest

from tests.helpers import SCRIPTS
from tests.launch import warm_torchrun

pytestmark = pytest.mark.slow
SCRIPT = SCRIPTS / "interface" / "parity.py"


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_way_equals_one_process_after_every_step(ranks: int):
    done = warm_torchrun(SCRIPT, ranks=ranks)
    assert done.returncode == 0, done.stdout
    assert "7 ways equal one process" in done.stdout


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("ddp", "DDP, before the first step: first.weight differs by"),
        ("optimizer", "sharded optimizer, Frozen, step 1: first.weight differs by"),
        ("state", "10 states are kept on all ranks together for 5 parameters that learn"),
        ("fsdp", "FSDP, Frozen, torch.float64: gradients of norm.weight differ"),
    ],
)
def test_a_planted_fault_is_noticed(fault: str, told: str):
    done = warm_torchrun(SCRIPT, fault, ranks=2)
    assert done.returncode != 0
    assert told in done.stdout, done.stdout
