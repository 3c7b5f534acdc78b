"""``setup`` asks the store N + N times, on any number of ranks."""

from pathlib import Path

import pytest

from tests.launch import warm_torchrun

PROOF = Path(__file__).with_name("proof_join.py")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8])  # the lesson runs it on 3
def test_the_reads_at_the_store_grow_with_the_ranks(ranks: int):
    done = warm_torchrun(PROOF, ranks=ranks)
    assert done.returncode == 0, done.stdout
    assert f"{ranks} ranks write {ranks + 1} keys and read {2 * ranks}" in done.stdout
