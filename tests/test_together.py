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
    launch = torchrun_command(Path("shared.runtime.together"), 3, tmp_path / "said", *proofs, options=["-m"])
    done = command(*launch)
    assert done.returncode == 1
    said = [(tmp_path / "said" / f"{proof.stem}.txt").read_text(encoding="utf-8") for proof in proofs]
    assert (said[0], said[2]) == ("first: the sum is 3\n", "third: the sum is 3\n")
    assert "this rank is wrong" in said[1] and said[1] in done.stdout
    verdicts = [line for line in done.stdout.splitlines() if line.startswith("proof_")]
    assert verdicts == ["proof_first.py: holds", "proof_second.py: failed", "proof_third.py: holds"]
    assert "1 of 3 proofs failed: proof_second.py" in done.stdout


@pytest.mark.slow
def test_a_missing_proof_is_named(tmp_path: Path):
    launch = torchrun_command(
        Path("shared.runtime.together"), 2, tmp_path / "said", tmp_path / "no.py", options=["-m"]
    )
    done = command(*launch)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].startswith("there is no file ")
