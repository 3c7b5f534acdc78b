"""The script of lesson 10 complains in one line, goes on where it stopped, and leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.helpers import ROOT, Done, command, environment, python, torchrun_command
from tests.launch import warm_torchrun
from tests.sleeping_lab import SleepingLab, wait_until
from tests.test_data import write_idx

TRAIN = ROOT / "labs" / "lab_10_train.py"
SAVED_AND_LEFT = 75
pytestmark = pytest.mark.slow


def complete(folder: Path) -> list[str]:
    """Names of the complete checkpoints in a folder, which must hold nothing else."""
    names = sorted(path.name for path in folder.iterdir())
    assert all(name.startswith("step_") and not name.endswith(".part") for name in names), names
    return names


def state_in(checkpoint: Path) -> dict:
    joined = checkpoint.parent.parent / "joined.pt"
    dcp_to_torch_save(checkpoint, joined)
    return torch.load(joined, weights_only=False)


def assert_same_state(left: Path, right: Path, tolerance: float = 1e-12) -> None:
    """Compare parameters and momentum of two checkpoints."""
    one = state_in(left)
    other = state_in(right)
    assert one["model"].keys() == other["model"].keys()
    for name, tensor in one["model"].items():
        torch.testing.assert_close(tensor, other["model"][name], rtol=0, atol=tolerance)
    momentum = one["optimizer"]["state"]
    assert momentum.keys() == other["optimizer"]["state"].keys() == one["model"].keys()
    for name, state in momentum.items():
        theirs = other["optimizer"]["state"][name]["momentum_buffer"]
        torch.testing.assert_close(state["momentum_buffer"], theirs, rtol=0, atol=tolerance)


def lines_of(done: Done) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--epochs", "none"),
            "argument --epochs: must be a whole number from 1, not 'none'; --help lists all options",
        ),
        (("--epochs", "0"), "argument --epochs: must be a whole number from 1, not '0'"),
        (("--lr", "-1"), "argument --lr: must be a number from 0, not '-1'"),
        (("--color", "red"), "unknown option --color; --help lists all options"),
        (("--batch-size", "1"), "--batch-size must be from 2 (ranks) to 1437 (images)"),
        (("--amp", "fp16", "--float64"), "--amp computes in half precision, --float64 in double"),
        (("--data", "nowhere"), "--data nowhere: use digits, mnist, cifar10, random, or a folder"),
        (
            ("--data", "random", "--model", "resnet"),
            "--model resnet: torchvision.models has no such classifier",
        ),
        (("--model", "resnet18"), "--model resnet18 takes images of 3 channels, --data digits has 1"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(arguments: tuple[str, ...], expected: str):
    done = warm_torchrun(TRAIN, *arguments)
    assert done.returncode == 2, done.stdout
    assert len(done.stdout.splitlines()) == 1, done.stdout
    assert done.stdout.startswith(expected)


def test_help_comes_once():
    done = warm_torchrun(TRAIN, "--help")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("--save-every") == 2  # in the usage, and in the list


def test_a_learning_rate_that_is_too_high_is_told_in_one_line():
    done = warm_torchrun(TRAIN, "--lr", "1e30", "--clip", "0", "--warm-up", "0", "--log-every", "2")
    assert done.returncode == 2, done.stdout
    assert "the loss is not finite; try a lower --lr" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("launcher", ["spawn", "process"])
def test_a_launcher_hands_on_a_failure(launcher: str):
    done = python(ROOT / "labs" / f"lab_10_launch_{launcher}.py", "--ranks", "2", "--batch-size", "1")
    assert done.returncode == 2
    assert "Traceback" not in done.stdout
    assert done.stdout.splitlines()[0] == "--batch-size must be from 2 (ranks) to 1437 (images)"


def test_a_line_of_json_every_few_steps_and_a_bar_with_a_total():
    done = warm_torchrun(TRAIN, "--epochs", "2", "--log-every", "10", "--amp")
    assert done.returncode == 0, done.stdout
    lines = lines_of(done)
    steps = [line for line in lines if "step" in line]
    assert [line["step"] for line in steps] == [10, 20, 30, 40, 50]
    assert all(line.keys() == {"step", "loss", "lr", "images/s", "saving_s"} for line in steps)
    assert [line["images"] for line in lines if "epoch" in line] == [360, 360]
    assert "0/58" in done.stdout


def test_a_run_that_goes_on_with_other_ranks_equals_the_unbroken_one(tmp_path: Path):
    """Two ranks, then one, then three; each goes on in the middle of an epoch of 28 steps."""
    common = ("--float64", "--augment", "--epochs", "2", "--batch-size", "50")
    saving = ("--save-every", "7", "--keep", "100", "--checkpoints")
    whole, one, three = (tmp_path / name for name in ("whole", "one", "three"))
    done = warm_torchrun(TRAIN, *common, *saving, whole)
    assert done.returncode == 0, done.stdout
    assert complete(whole) == [f"step_{step:08d}" for step in range(7, 57, 7)]
    for ranks, before, after, step in ((1, whole, one, 7), (3, one, three, 35)):
        name = f"step_{step:08d}"
        shutil.copytree(before / name, after / name)
        more = ("--workers", "1", "--micro-batch", "9") if ranks == 3 else ()
        done = warm_torchrun(TRAIN, *common, *more, *saving, after, ranks=ranks)
        assert done.returncode == 0, done.stdout
        assert done.stdout.splitlines()[0] == f"going on from {name}"
    for name in complete(three):
        assert_same_state(whole / name, three / name)
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_same_state(whole / "step_00000049", three / "step_00000056")

    refused = warm_torchrun(TRAIN, *common, "--lr", "0.05", "--seed", "1", *saving, three)
    assert refused.returncode == 2
    assert refused.stdout == (
        "step_00000056 is of a run with other options: --lr 0.05 (was 0.1), --seed 1 (was 0); "
        "use another folder\n"
    )


def test_the_scale_of_fp16_is_saved_and_the_newest_are_kept(tmp_path: Path):
    common = ("--amp", "fp16", "--epochs", "1", "--save-every", "10", "--checkpoints", tmp_path / "run")
    done = warm_torchrun(TRAIN, *common)
    assert done.returncode == 0, done.stdout
    assert complete(tmp_path / "run") == ["step_00000020", "step_00000029"]
    shutil.rmtree(tmp_path / "run" / "step_00000029")
    again = warm_torchrun(TRAIN, *common)
    assert again.stdout.splitlines()[0] == "going on from step_00000020"
    scaler = state_in(tmp_path / "run" / "step_00000029")["scaler"]
    assert (scaler["scale"], scaler["_growth_tracker"]) == (65536.0, 29)  # no step was ever skipped


def test_a_compiled_run_and_another_read_each_others_checkpoints(tmp_path: Path):
    common = ("--epochs", "1", "--save-every", "14", "--keep", "9", "--checkpoints")
    compiled = tmp_path / "compiled"
    done = warm_torchrun(TRAIN, "--compile", *common, compiled, ranks=1)
    assert done.returncode == 0, done.stdout
    plain = tmp_path / "plain"
    shutil.copytree(compiled / "step_00000014", plain / "step_00000014")
    done = warm_torchrun(TRAIN, *common, plain, ranks=1)
    assert done.stdout.splitlines()[0] == "going on from step_00000014", done.stdout
    assert not any("_orig_mod" in name for name in state_in(compiled / "step_00000029")["model"])
    assert_same_state(compiled / "step_00000029", plain / "step_00000029", tolerance=1e-3)


def rank_of(launcher: int) -> int:
    """Process id of the last rank that this torchrun has started."""
    return psutil.Process(launcher).children()[-1].pid


@pytest.mark.parametrize(
    ("number", "to"),
    [(signal.SIGINT, "launcher"), (signal.SIGTERM, "launcher"), (signal.SIGUSR1, "rank")],
)
def test_a_signal_leaves_a_complete_checkpoint_and_no_process(number: int, to: str, tmp_path: Path):
    folder = tmp_path / "run"
    arguments = ("--epochs", "1000", "--workers", "1", "--save-every", "5", "--checkpoints", folder)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    lab = SleepingLab(folder)  # finds the processes that bear this path
    with subprocess.Popen(torchrun_command(TRAIN, 2, *arguments), env=environment(), **quiet) as launcher:
        try:
            wait_until(lambda: any(folder.glob("step_*[0-9]")), "the first checkpoint is there")
            target = launcher.pid if to == "launcher" else rank_of(launcher.pid)
            os.kill(target, number)
            assert launcher.wait(60) != 0
            wait_until(lambda: not lab.processes(), "no process is left")
        finally:
            lab.end()
    newest = complete(folder)[-1]
    assert json.loads((folder / newest / "run.json").read_text())["step"] == int(newest.removeprefix("step_"))
    assert (folder / newest / ".metadata").is_file()


def test_the_exit_code_tells_that_a_run_can_go_on(tmp_path: Path):
    """SIGUSR1 while it trains: it saves the step that it has done, which no --save-every would."""
    folder = tmp_path / "run"
    arguments = ["--epochs", "1000", "--save-every", "10", "--checkpoints", str(folder)]
    with subprocess.Popen(
        [sys.executable, str(TRAIN), *arguments], env=environment(), stdout=subprocess.DEVNULL
    ) as run:
        try:
            wait_until(lambda: any(folder.glob("step_*[0-9]")), "the first checkpoint is there")
            run.send_signal(signal.SIGUSR1)
            assert run.wait(60) == SAVED_AND_LEFT
        finally:
            run.kill()
    assert len(complete(folder)) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -f in units of 1,024 bytes")
def test_a_full_disk_is_told_and_the_run_goes_on(tmp_path: Path):
    """No file may grow beyond 100 KiB here; a rank's part of a checkpoint is larger."""
    folder = tmp_path / "run"
    script = f"ulimit -f 100; exec {sys.executable} {TRAIN} --epochs 2 --checkpoints {folder}"
    done = command("bash", "-c", script)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout
    for name in ("step_00000029", "step_00000058"):
        [line] = [line for line in done.stdout.splitlines() if f"{name} was not saved: " in line]
        assert line.endswith(" bytes are free there")
    assert [line["epoch"] for line in lines_of(done) if "epoch" in line] == [1, 2]
    assert complete(folder) == []


def test_mnist_is_trained_on(tmp_path: Path):
    """On six images, which lie where torchvision looks for them."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 6), ("t10k", 3)):
        pixels = torch.arange(count * 28 * 28).reshape(count, 28, 28) % 256
        write_idx(raw / f"{part}-images-idx3-ubyte", pixels)
        write_idx(raw / f"{part}-labels-idx1-ubyte", torch.arange(count) % 10)
    done = warm_torchrun(
        TRAIN, "--data", "mnist", "--downloads", tmp_path, "--batch-size", "2", "--epochs", "1"
    )
    assert done.returncode == 0, done.stdout
    assert lines_of(done)[-1]["images"] == 3


@pytest.fixture
def images(tmp_path: Path) -> Path:
    from PIL import Image

    for part, count in (("train", 3), ("test", 1)):
        for shade, name in ((40, "dark"), (200, "light")):
            target = tmp_path / part / name
            target.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (20, 12), (shade, shade, shade)).save(target / f"{number}.png")
    return tmp_path


def test_a_folder_of_images_is_trained_on_with_batch_norm(images: Path):
    arguments = ("--data", images, "--side", "32", "--batch-size", "4", "--epochs", "1")
    done = warm_torchrun(TRAIN, *arguments, "--model", "resnet18", RANK_BY_RANK_DEVICE="cpu")
    assert done.returncode == 0, done.stdout
    assert lines_of(done)[-1]["images"] == 2
    assert done.stdout.count("SyncBatchNorm needs GPUs, see lab_10_sync_batch_norm") == 1


def test_a_folder_with_other_classes_to_test_is_told_in_one_line(images: Path):
    (images / "test" / "light").rename(images / "test" / "bright")
    done = warm_torchrun(TRAIN, "--data", images, "--batch-size", "4")
    assert done.returncode == 2
    assert "train has the classes ['dark', 'light'], test has ['bright', 'dark']" in done.stdout
    shutil.rmtree(images / "test")
    done = warm_torchrun(TRAIN, "--data", images, "--batch-size", "4")
    assert "must hold images as train/CLASS/*.png and test/CLASS/*.png" in done.stdout


def test_the_file_alone_trains_dies_and_goes_on(tmp_path: Path):
    """Copied into an empty folder, where nothing of this course can be imported."""
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "shared.py").write_text("raise ImportError('a script that is copied has no shared')\n")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(TRAIN, alone / "train.py")
    surroundings = environment(None, PYTHONPATH=str(trap))
    arguments = ("--epochs", "4", "--float64", "--save-every", "5", "--checkpoints")
    lab = SleepingLab(alone / "run")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = torchrun_command(Path("train.py"), 2, *arguments, alone / "run")
    with subprocess.Popen(first, cwd=alone, env=surroundings, **quiet) as launcher:
        try:
            wait_until(lambda: any((alone / "run").glob("step_*[0-9]")), "the first checkpoint is there")
            launcher.kill()
            wait_until(lambda: not lab.processes(), "no rank outlives its launcher")
        finally:
            lab.end()
    second = torchrun_command(Path("train.py"), 3, *arguments, "run")
    done = subprocess.run(second, cwd=alone, env=surroundings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "going on from step_" in done.stdout
    unbroken = warm_torchrun(TRAIN, *arguments, tmp_path / "unbroken", ranks=1)
    assert unbroken.returncode == 0, unbroken.stdout
    assert_same_state(alone / "run" / "step_00000116", tmp_path / "unbroken" / "step_00000116")
