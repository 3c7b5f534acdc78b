"""The script of lesson 10 complains in one line, goes on where it stopped, and leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.helpers import ROOT, Done, command, environment, python, torchrun_command
from tests.launch import warm_torchrun
from tests.sleeping_lab import SleepingLab, wait_until

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
        (("--epochs", "none"), "argument --epochs: invalid int value: 'none'; --help lists all options"),
        (("--epochs", "0"), "--epochs must be at least 1, not 0"),
        (("--lr", "nan"), "--lr must be a number from 0, not nan"),
        (("--batch", "48"), "unknown option --batch; --help lists all options"),
        (("--device", "cuda"), "--device cuda: torch sees no GPU on this machine"),
        (("--evaluate",), "--evaluate tests a checkpoint: name its folder with --checkpoints"),
        (("--batch-size", "1"), "--batch-size must be from 2 (ranks) to 1437 (images)"),
        (("--amp", "fp16", "--float64"), "--amp computes in half precision, --float64 in double"),
        (("--data", "nowhere"), "--data nowhere: use digits, random, or a folder"),
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
    [line] = [line for line in done.stdout.splitlines() if not line.startswith('{"ranks": ')]
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("wanted", "gpus", "ranks", "expected"),
    [
        ("auto", 0, 2, "cpu"),
        ("auto", 2, 2, "cuda:1"),
        ("cpu", 2, 2, "cpu"),
        ("auto", 1, 2, "2 ranks but 1 GPU(s) on this machine: start 1, or --device cpu"),
        ("cuda", 0, 2, "--device cuda: torch sees no GPU on this machine"),
    ],
)
def test_a_gpu_for_each_rank_or_an_error(
    wanted: str, gpus: int, ranks: int, expected: str, monkeypatch: pytest.MonkeyPatch
):
    from labs import lab_10_train as script

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    try:
        outcome = str(script.pick_device(wanted, ranks - 1, ranks))
    except script.Refused as error:
        outcome = str(error)
    assert outcome == expected


def test_help_comes_once():
    done = warm_torchrun(TRAIN, "--help")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("--save-every") == 2  # in the usage, and in the list


def test_a_learning_rate_that_is_too_high_is_told_in_one_line():
    done = warm_torchrun(TRAIN, "--lr", "1e30", "--clip", "0", "--warm-up", "0", "--log-every", "2")
    assert done.returncode == 2, done.stdout
    assert "the loss is not finite; try a lower --lr" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_line_of_json_every_few_steps_and_at_the_end(tmp_path: Path):
    """The first one tells how the run was started; a function of one's own gets all but that."""
    (tmp_path / "sink.py").write_text("def tell(values):\n    print('sink', sorted(values)[0])\n")
    options = ("--epochs", "2", "--log-every", "10", "--amp", "--metrics", "sink:tell")
    done = warm_torchrun(TRAIN, *options, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout
    first, *lines = lines_of(done)
    about = (first["ranks"], first["device"], first["backend"], first["torch"])
    assert about == (2, "cpu", "gloo", torch.__version__)
    assert first["options"]["batch_size"] == 48
    steps = [line for line in lines if "step" in line]
    assert [line["step"] for line in steps] == [10, 20, 30, 40, 50, 58]
    keys = {"step", "loss", "lr", "gradient_norm", "images/s", "loading", "saving_s", "memory_mb"}
    assert all(line.keys() == keys for line in steps)
    assert all(line["gradient_norm"] > 0 and 0 <= line["loading"] <= 1 for line in steps)
    assert [line["images"] for line in lines if "epoch" in line] == [360, 360]
    assert done.stdout.count("sink gradient_norm") == 6
    assert "0/58" not in done.stdout  # no bar in a file


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
        more = ("--workers", "1", "--micro-batch", "9", "--allow-changes") if ranks == 3 else ()
        done = warm_torchrun(TRAIN, *common, *more, *saving, after, ranks=ranks)
        assert done.returncode == 0, done.stdout
        assert f"\ngoing on from {name}\n" in done.stdout
    for name in complete(three):
        assert_same_state(whole / name, three / name)
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_same_state(whole / "step_00000049", three / "step_00000056")

    refused = warm_torchrun(TRAIN, *common, "--lr", "0.05", "--seed", "1", *saving, three)
    assert refused.returncode == 2
    assert refused.stdout.splitlines()[1:] == [
        "step_00000056 is of a run with other options: --micro-batch None (was 9), --lr 0.05 (was 0.1), "
        "--seed 1 (was 0); use another folder"
    ]


def test_the_learning_rate_and_the_epochs_may_change_on_request(tmp_path: Path):
    saving = ("--save-every", "29", "--checkpoints", tmp_path)
    assert warm_torchrun(TRAIN, "--epochs", "1", *saving, ranks=1).returncode == 0
    changed = ("--epochs", "2", "--lr", "0.01")
    refused = warm_torchrun(TRAIN, *changed, *saving, ranks=1)
    assert refused.returncode == 2
    assert "--epochs 2 (was 1), --lr 0.01 (was 0.1); add --allow-changes, or use another" in refused.stdout
    done = warm_torchrun(TRAIN, *changed, "--allow-changes", *saving, ranks=1)
    assert done.returncode == 0, done.stdout
    assert [line["epoch"] for line in lines_of(done) if "epoch" in line] == [1, 2]
    assert complete(tmp_path) == ["step_00000029", "step_00000058"]
    tested = warm_torchrun(TRAIN, *changed, "--evaluate", *saving, ranks=2)
    assert [line for line in lines_of(tested) if "epoch" in line] == lines_of(done)[-1:]


def cut_short(checkpoint: Path) -> None:
    [shard] = checkpoint.glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:-1000])


BREAKS = {
    "a shard is cut short": cut_short,
    ".metadata is empty": lambda checkpoint: (checkpoint / ".metadata").write_bytes(b""),
    "run.json is empty": lambda checkpoint: (checkpoint / "run.json").write_bytes(b""),
}


def test_a_broken_checkpoint_is_told_and_the_one_before_it_is_taken(tmp_path: Path):
    """Names that only look like ours are left alone."""
    common = ("--epochs", "1", "--float64", "--save-every", "10", "--keep", "9", "--checkpoints")
    whole = tmp_path / "whole"
    assert warm_torchrun(TRAIN, *common, whole, ranks=1).returncode == 0
    for number, (what, spoil) in enumerate(BREAKS.items()):
        folder = tmp_path / f"run_{number}"
        shutil.copytree(whole / "step_00000010", folder / "step_00000010")
        shutil.copytree(whole / "step_00000020", folder / "step_00000020")
        shutil.copytree(whole / "step_00000020", folder / "step_best")
        (folder / "step_mine.part").mkdir()
        spoil(folder / "step_00000020")
        done = warm_torchrun(TRAIN, *common, folder)
        assert done.returncode == 0, f"{what}: {done.stdout}"
        assert "Traceback" not in done.stdout
        told = [line for line in done.stdout.splitlines() if not line.startswith("{")]
        assert told[0].startswith("step_00000020 cannot be read: "), what
        assert told[1:] == [
            "it is now step_00000020.broken, and the steps after step_00000010 are lost",
            "going on from step_00000010",
        ]
        names = {"step_00000020", "step_00000020.broken", "step_best", "step_mine.part"}
        assert names <= {path.name for path in folder.iterdir()}
        assert_same_state(folder / "step_00000029", whole / "step_00000029")
    spoil(folder / "step_00000029")
    for path in folder.glob("step_000000[12]0"):
        shutil.rmtree(path)
    refused = warm_torchrun(TRAIN, *common, folder)
    assert refused.returncode == 2
    assert "has no checkpoint that can be read; move it to begin anew" in refused.stdout
    assert (folder / "step_00000029").is_dir()


def test_what_is_not_a_number_is_not_saved(tmp_path: Path):
    options = ("--lr", "1e20", "--clip", "0", "--warm-up", "0", "--save-every", "4", "--log-every", "100")
    done = warm_torchrun(TRAIN, *options, "--checkpoints", tmp_path)
    assert done.returncode == 2, done.stdout
    assert "step 4: the loss is not finite; try a lower --lr with --allow-changes" in done.stdout
    assert complete(tmp_path) == []
    done = warm_torchrun(TRAIN, "--epochs", "1", *options[:-1], "1000", "--save-every", "1000")
    assert done.returncode == 2  # it is seen at the end at the latest
    assert "step 29: the loss is not finite" in done.stdout


def test_the_scale_of_fp16_is_saved_and_the_newest_are_kept(tmp_path: Path):
    common = ("--amp", "fp16", "--epochs", "1", "--save-every", "10", "--checkpoints", tmp_path / "run")
    done = warm_torchrun(TRAIN, *common)
    assert done.returncode == 0, done.stdout
    assert complete(tmp_path / "run") == ["step_00000020", "step_00000029"]
    shutil.rmtree(tmp_path / "run" / "step_00000029")
    again = warm_torchrun(TRAIN, *common)
    assert "\ngoing on from step_00000020\n" in again.stdout
    scaler = state_in(tmp_path / "run" / "step_00000029")["scaler"]
    assert (scaler["scale"], scaler["_growth_tracker"]) == (65536.0, 29)  # no step was ever skipped


def test_a_compiled_run_and_another_read_each_others_checkpoints(tmp_path: Path):
    common = ("--epochs", "1", "--save-every", "14", "--keep", "9", "--checkpoints")
    compiled = tmp_path / "compiled"
    done = warm_torchrun(TRAIN, "--compile", *common, compiled, ranks=1)
    assert done.returncode == 0, done.stdout
    plain = tmp_path / "plain"
    shutil.copytree(compiled / "step_00000014", plain / "step_00000014")
    done = warm_torchrun(TRAIN, "--allow-changes", *common, plain, ranks=1)
    assert "\ngoing on from step_00000014\n" in done.stdout
    assert not any("_orig_mod" in name for name in state_in(compiled / "step_00000029")["model"])
    assert_same_state(compiled / "step_00000029", plain / "step_00000029", tolerance=1e-3)


def rank_of(launcher: int) -> int:
    """Process id of the last rank that this torchrun has started."""
    return psutil.Process(launcher).children()[-1].pid


@pytest.mark.parametrize(
    ("to", "number", "code"),
    [
        ("launcher", signal.SIGUSR1, 1),  # torchrun's own, whatever those of its ranks are
        ("rank", signal.SIGUSR1, 1),
        ("launcher", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_signal_leaves_a_complete_checkpoint_and_no_process(
    to: str, number: int, code: int, tmp_path: Path
):
    folder = tmp_path / "run"
    arguments = ("--epochs", "1000", "--workers", "1", "--save-every", "5", "--checkpoints", folder)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    lab = SleepingLab(folder)  # finds the processes that bear this path
    handed_on = "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"  # as the script's docstring says
    started = torchrun_command(TRAIN, 2, *arguments, options=[handed_on])
    with subprocess.Popen(started, env=environment(), **quiet) as launcher:
        try:
            wait_until(lambda: any(folder.glob("step_*[0-9]")), "the first checkpoint is there")
            target = launcher.pid if to == "launcher" else rank_of(launcher.pid)
            os.kill(target, number)
            assert launcher.wait(60) == code
            wait_until(lambda: not lab.processes(), "no process is left")
        finally:
            lab.end()
    newest = complete(folder)[-1]
    assert json.loads((folder / newest / "run.json").read_text())["step"] == int(newest.removeprefix("step_"))
    assert (folder / newest / ".metadata").is_file()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_the_exit_code_tells_that_a_run_can_go_on(number: int, tmp_path: Path):
    """A signal while it trains: it saves the step that it has done, which no --save-every would."""
    folder = tmp_path / "run"
    arguments = ["--epochs", "1000", "--save-every", "10", "--checkpoints", str(folder)]
    with subprocess.Popen(
        [sys.executable, str(TRAIN), *arguments], env=environment(), stdout=subprocess.DEVNULL
    ) as run:
        try:
            wait_until(lambda: any(folder.glob("step_*[0-9]")), "the first checkpoint is there")
            run.send_signal(number)
            assert run.wait(60) == SAVED_AND_LEFT
        finally:
            run.kill()
    assert len(complete(folder)) == 2


SIGNAL_IN_EVALUATION = """
import os, signal, sys, lab_10_train

def evaluate(*arguments, real=lab_10_train.evaluate):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*arguments)

lab_10_train.evaluate = evaluate
sys.exit(lab_10_train.main(sys.argv[1:]))
"""


def test_a_signal_ends_the_evaluation_and_the_next_run_makes_it(tmp_path: Path):
    arguments = ("--epochs=1", f"--checkpoints={tmp_path / 'run'}")
    stopped = python("-c", SIGNAL_IN_EVALUATION, *arguments, cwd=TRAIN.parent)
    assert stopped.returncode == SAVED_AND_LEFT
    assert [line for line in lines_of(stopped) if "epoch" in line] == []
    again = python(TRAIN, *arguments)
    assert again.returncode == 0
    assert [line["epoch"] for line in lines_of(again) if "epoch" in line] == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -f in units of 1,024 bytes")
def test_a_full_disk_is_told_and_the_run_goes_on(tmp_path: Path):
    """No file may grow beyond 100 KiB here; a rank's part of a checkpoint is larger."""
    folder = tmp_path / "run"
    script = f"ulimit -f 100; exec '{sys.executable}' '{TRAIN}' --epochs 2 --checkpoints '{folder}'"
    done = command("bash", "-c", script)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout
    for name in ("step_00000029", "step_00000058"):
        [line] = [line for line in done.stdout.splitlines() if f"{name} was not saved: " in line]
        assert line.endswith(" bytes are free there")
    assert [line["epoch"] for line in lines_of(done) if "epoch" in line] == [1, 2]
    assert complete(folder) == []


def test_adamw_and_a_trace_of_three_steps(tmp_path: Path):
    options = ("--optimizer", "adamw", "--epochs", "1", "--checkpoints", tmp_path / "run")
    done = warm_torchrun(TRAIN, *options, "--profile", tmp_path / "trace")
    assert done.returncode == 0, done.stdout
    assert lines_of(done)[-1]["accuracy"] > 0.8
    for rank in range(2):
        events = json.loads((tmp_path / "trace" / f"rank_{rank}.json").read_text())["traceEvents"]
        steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep#")}
        assert steps == {"ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7"}  # counted from 0
    groups = state_in(tmp_path / "run" / "step_00000029")["optimizer"]["param_groups"]
    decayed = {name for name, group in flat(groups) if group["weight_decay"] > 0}
    assert decayed == {"conv1.weight", "conv2.weight", "head.weight"}


def flat(groups: list[dict]) -> list[tuple[str, dict]]:
    return [(name, group) for group in groups for name in group["params"]]


@pytest.mark.skipif(find_spec("safetensors") is not None, reason="safetensors is installed")
def test_an_export_without_safetensors_is_told_before_training(tmp_path: Path):
    done = warm_torchrun(TRAIN, "--export", tmp_path)
    assert (done.returncode, done.stdout) == (2, "--export needs a package: pip install safetensors\n")


@pytest.mark.skipif(find_spec("safetensors") is None, reason="safetensors is not installed")
def test_the_model_is_exported(tmp_path: Path):
    from safetensors.torch import load_file

    options = ("--epochs", "1", "--export", tmp_path / "model", "--checkpoints", tmp_path / "run")
    done = warm_torchrun(TRAIN, *options)
    assert done.returncode == 0, done.stdout
    exported = load_file(tmp_path / "model" / "model-00001-of-00001.safetensors")
    saved = state_in(tmp_path / "run" / "step_00000029")["model"]
    assert exported.keys() == saved.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in saved.items())


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
    assert [line["images"] for line in lines_of(done) if "images" in line] == [2]
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
