"""The script of lesson 10 complains in one line, goes on where it stopped, and leaves nothing behind."""

import signal
import subprocess
from pathlib import Path

import pytest
import torch

from shared.training.checkpoint import load_checkpoint
from tests.helpers import ROOT, environment, python, torchrun_command
from tests.processes import SleepingLab, wait_until
from tests.test_data import write_idx
from tests.warm import warm_torchrun

TRAIN = ROOT / "labs" / "lab_10_train.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--epochs", "none"), "argument --epochs: invalid positive value: 'none'; --help lists all options"),
        (("--color", "red"), "unrecognized arguments: --color red; --help lists all options"),
        (("--batch-size", "7"), "--batch-size must divide by 2 ranks and be at most 1437"),
        (("--resume", "no_such.pt"), "no_such.pt: there is no such checkpoint"),
        (
            ("--dataset", "no_such_folder"),
            "data set 'no_such_folder' is no folder; use digits, mnist or the path of a folder",
        ),
    ],
)
def test_a_wrong_option_is_told_in_one_line(arguments: tuple[str, ...], expected: str):
    done = warm_torchrun(TRAIN, *arguments)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == expected
    assert done.stdout.splitlines().count(expected) == 1


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["spawn", "process"])
def test_a_launcher_hands_on_a_failure(launcher: str):
    done = python(ROOT / "labs" / f"lab_10_launch_{launcher}.py", "--ranks", "2", "--batch-size", "7")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    assert "--batch-size must divide by 2 ranks and be at most 1437" in done.stdout.splitlines()


@pytest.mark.slow
def test_a_resumed_run_equals_the_unbroken_one(tmp_path: Path):
    """On three ranks, with everything that draws random numbers."""
    whole, half, rest = (tmp_path / f"{name}.pt" for name in ("whole", "half", "rest"))
    common = ("--augment", "--amp", "--workers", "1", "--epochs")
    for arguments in (
        (*common, "2", "--checkpoint", whole),
        (*common, "1", "--checkpoint", half),
        (*common, "2", "--resume", half, "--checkpoint", rest),
    ):
        done = warm_torchrun(TRAIN, *arguments, ranks=3)
        assert done.returncode == 0, done.stdout
    unbroken, resumed = load_checkpoint(whole), load_checkpoint(rest)
    assert unbroken["model"].keys() == resumed["model"].keys()
    assert all(torch.equal(unbroken["model"][name], resumed["model"][name]) for name in unbroken["model"])
    other = warm_torchrun(TRAIN, "--resume", half, "--seed", "1")
    assert other.stdout.splitlines()[0] == (
        "half.pt: was saved by a run of convnet on digits, batch 48, seed 0, "
        "this one is of convnet on digits, batch 48, seed 1"
    )


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_a_whole_checkpoint(tmp_path: Path):
    path = tmp_path / "run.pt"
    arguments = ("--epochs", "1000", "--workers", "1", "--checkpoint", path)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    lab = SleepingLab(path)  # finds the processes that bear this path
    with subprocess.Popen(torchrun_command(TRAIN, 2, *arguments), env=environment(), **quiet) as launcher:
        try:
            wait_until(path.is_file, "the first checkpoint is there")
            launcher.send_signal(signal.SIGINT)
            assert launcher.wait(60) != 0
            wait_until(lambda: not lab.processes(), "no process is left")
        finally:
            lab.end()
    assert len(load_checkpoint(path)["history"]) >= 1


@pytest.mark.slow
def test_mnist_is_trained_on(tmp_path: Path):
    """On six images, which lie where MNIST was downloaded before."""
    raw = tmp_path / ".cache" / "rank-by-rank" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 6), ("t10k", 3)):
        write_idx(
            raw / f"{part}-images-idx3-ubyte", torch.arange(count * 28 * 28).reshape(count, 28, 28) % 256
        )
        write_idx(raw / f"{part}-labels-idx1-ubyte", torch.arange(count) % 10)
    done = warm_torchrun(
        TRAIN, "--dataset", "mnist", "--batch-size", "2", "--epochs", "1", HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout
    assert "of 3 images right" in done.stdout
