"""A rank of lesson 10's script that fails is gone soon, for the others wait for it; a save still ends."""

import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT, SCRIPTS, environment, torchrun_command

TRAIN = ROOT / "labs" / "lab_10_train.py"
LAUNCH = SCRIPTS / "rank_that_fails.py"
HANG_S = 240
NOTICED_S = 40  # its start included; a rank that stays for longer stays for ever
OPTIONS = ("--epochs=1", "--save-every=4")
pytestmark = pytest.mark.slow


def fails(script: Path, how: str, folder: Path, patience_s: float) -> str:
    """What the job printed. Raises ``TimeoutExpired`` if it has not ended by then; its ranks die with it."""
    launch = torchrun_command(LAUNCH, 2, script, how, *OPTIONS, f"--checkpoints={folder}")
    output = folder.with_suffix(".txt")
    with output.open("w") as stream:
        job = subprocess.Popen(launch, cwd=ROOT, env=environment(), stdout=stream, stderr=subprocess.STDOUT)
        try:
            assert job.wait(patience_s) == 1
        finally:
            job.kill()
            job.wait()
    return output.read_text(encoding="utf-8")


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step_????????"))


@pytest.mark.parametrize("how", ["late", "stuck"])
def test_a_rank_that_fails_leaves(how: str, tmp_path: Path):
    printed = fails(TRAIN, how, tmp_path / "run", HANG_S)
    assert "RuntimeError: planted" in printed
    assert kept(tmp_path / "run") == ([] if how == "stuck" else ["step_00000004"]), printed


def faulty(folder: Path, good: str, bad: str) -> Path:
    text = TRAIN.read_text(encoding="utf-8")
    assert text.count(good) == 1
    script = folder / "faulty.py"
    script.write_text(text.replace(good, bad), encoding="utf-8")
    return script


def test_a_fault_lets_it_stay(tmp_path: Path):
    script = faulty(tmp_path, "    give_up.start()\n", "")
    with pytest.raises(subprocess.TimeoutExpired):
        fails(script, "stuck", tmp_path / "run", NOTICED_S)
    assert "RuntimeError: planted" in (tmp_path / "run.txt").read_text(encoding="utf-8")


def test_a_fault_loses_the_save_under_way(tmp_path: Path):
    script = faulty(tmp_path, "    give_up.start()\n    sys.exit(1)\n", "    os._exit(1)\n")
    printed = fails(script, "late", tmp_path / "run", HANG_S)
    assert "RuntimeError: planted" in printed
    assert kept(tmp_path / "run") == []
