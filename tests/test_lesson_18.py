"""Lesson 18: the sharded optimizer stands in for any of torch's."""

import pytest

from tests.helpers import SCRIPTS
from tests.launch import warm_torchrun

pytestmark = pytest.mark.slow


def test_it_equals_every_optimizer_of_torch():
    done = warm_torchrun(SCRIPTS / "sharded_optimizers.py", ranks=3)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert sum(line.startswith("equal: ") for line in lines) >= 2 * 12 + 2
    refused = [line for line in lines if line.startswith("refused: ")]
    assert len(refused) == 6
    assert refused[-2] == "refused: the loaded state has parameter groups of other sizes"
    assert refused[-1].endswith("is DDP around the model, too?")
