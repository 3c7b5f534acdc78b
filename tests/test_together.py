"""Several proofs in one launch: each is judged by itself, and one that fails does not hide the others."""

from pathlib import Path

import pytest

from tests.helpers import command, torchrun_command

PROOF = """
import torch
import torch.distributed as dist
from shared.runtime.group import process_group
from shared.runtime.run import run

def main():
    with process_group(report=False) as group:
        assert group.rank != {wrong_rank}, "this rank is wrong"
        total = torch.ones(()) * group.rank
        dist.all_reduce(total)
        if group.rank == 0:
            print("{name}: the sum is", int(total))

if __name__ == "__main__":
    run(main)
"""


@pytest.mark.slow
def test_a_proof_that_fails_does_not_hide_the_others(tmp_path: Path):
    proofs = []
    for name, wrong_rank in (("first", -1), ("second", 1), ("third", -1)):
        proof = tmp_path / f"proof_{name}.py"
        proof.write_text(PROOF.format(name=name, wrong_rank=wrong_rank), encoding="utf-8")
        proofs.append(proof)
    done = command(*torchrun_command(Path("shared.runtime.together"), 3, *proofs, options=["-m"]))
    assert done.returncode == 1
    said = [line for line in done.stdout.splitlines() if "the sum is" in line]
    assert said == ["first: the sum is 3", "third: the sum is 3"]
    assert "this rank is wrong" in done.stdout
    assert "1 of 3 failed: proof_second.py" in done.stdout


@pytest.mark.slow
def test_a_missing_proof_is_named(tmp_path: Path):
    done = command(*torchrun_command(Path("shared.runtime.together"), 2, tmp_path / "no.py", options=["-m"]))
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].startswith("there is no file ")
