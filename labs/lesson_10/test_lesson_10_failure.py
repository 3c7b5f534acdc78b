"""A rank of lesson 10's script that fails is gone soon, for the others wait for it; a save still ends."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import HANG_S, ROOT, environment, torchrun_command
from tests.sleeping_lab import wait_until

LAUNCH = Path(__file__).with_name("rank_that_fails.py")
OPTIONS = ("--epochs=1", "--save-every=4")
pytestmark = pytest.mark.slow


@contextmanager
def failing(how: str, folder: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A job whose rank 1 has failed, and the file with what it prints; its ranks die with it."""
    launch = torchrun_command(LAUNCH, 2, how, *OPTIONS, f"--checkpoints={folder}")
    output = folder.with_suffix(".txt")
    surroundings = environment(None, PYTHONPATH=str(ROOT / "labs"))
    with output.open("w") as stream:
        job = subprocess.Popen(launch, cwd=ROOT, env=surroundings, stdout=stream, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: "RuntimeError: planted" in output.read_text(encoding="utf-8"), "rank 1 fails")
            yield job, output
        finally:
            job.kill()
            job.wait()


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step_????????"))


@pytest.mark.parametrize("how", ["late", "stuck"])
def test_a_rank_that_fails_leaves(how: str, tmp_path: Path):
    with failing(how, tmp_path / "run") as (job, printed):
        assert job.wait(HANG_S) == 1
        saved = [] if how == "stuck" else ["step_00000004"]
        assert kept(tmp_path / "run") == saved, printed.read_text(encoding="utf-8")
