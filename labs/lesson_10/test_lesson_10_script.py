"""The script of lesson 10 complains in one line, resumes where it stopped, and leaves nothing behind."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from labs import lab_10_batches
from tests.helpers import ROOT, Done, command, environment, torchrun_command
from tests.launch import warm_torchrun
from tests.rules.labs import siblings
from tests.sleeping_lab import SleepingLab, wait_until

TRAIN = ROOT / "labs" / "lab_10_train.py"
FILES = [TRAIN, *siblings(TRAIN)]
CHANGED = Path(__file__).with_name("train_with.py")  # its first argument is code
LABS = str(ROOT / "labs")
SAVED_AND_LEFT = 75
pytestmark = pytest.mark.slow


def complete(folder: Path) -> list[str]:
    """Names of the complete checkpoints in a folder, which must hold nothing else but the lock."""
    names = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
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
        (("--epochs", "none"), "argument --epochs: invalid int value: 'none'"),
        (("--epoch", "1"), "unknown option --epoch; --help lists all"),
        (("--epochs", "0"), "--epochs must be a number from 1, not 0"),
        (("--lr", "nan"), "--lr must be a number from 0, not nan"),
        (("--device", "cuda"), "2 ranks but 0 GPU(s) on this machine: start as many, or --device cpu"),
        (("--evaluate",), "--evaluate: --checkpoints must name a folder with a checkpoint"),
        (("--batch-size", "1"), "a batch must have 2 (the ranks) to 1437 images, not 1"),
        (("--data", "nowhere"), "nowhere is no folder with train/CLASS/*.png and test/CLASS/*.png"),
        (("--model", "resnet"), "--model resnet: no classifier of torchvision, or --data is no folder"),
        (("--model", "resnet18"), "--model resnet18: no classifier of torchvision, or --data is no folder"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(arguments: tuple[str, ...], expected: str):
    done = warm_torchrun(TRAIN, *arguments)
    assert done.returncode == 2, done.stdout
    [line] = [line for line in done.stdout.splitlines() if not line.startswith('{"ranks": ')]
    assert line.startswith(expected)


# This machine has no GPU: what the script asks of torch.cuda is answered by these lines.
ONE_GPU_EACH = """
import types
script.torch.cuda.device_count = lambda: 1
script.torch.cuda.set_device = print
script.torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid={uuid})
def group(backend, device_id, **options):
    print(f"rank {{os.environ['RANK']}} takes {{device_id}} over {{backend}}", flush=True)
    script.time.sleep({wait_s})
    raise script.Refused("enough")
script.dist.init_process_group = group
stopping.FIRST_SAYS_S = 1
"""


def test_two_ranks_on_one_gpu_are_an_error():
    done = warm_torchrun(CHANGED, ONE_GPU_EACH.format(uuid="'GPU-1'", wait_s=60), PYTHONPATH=LABS)
    assert done.returncode == 2
    assert "2 ranks but 1 GPU(s) on this machine: start as many, or --device cpu\n" in done.stdout


def test_each_rank_may_see_one_gpu_alone():
    """As srun --gpus-per-task=1, torchrun --virtual-local-rank and Kubernetes arrange it."""
    code = ONE_GPU_EACH.format(uuid="os.environ['RANK']", wait_s=1)
    done = warm_torchrun(CHANGED, code, PYTHONPATH=LABS)
    assert {"rank 0 takes cuda:0 over nccl", "rank 1 takes cuda:0 over nccl"} <= set(done.stdout.splitlines())


def test_a_machine_without_a_gpu_beside_one_with_gpus_is_an_error():
    code = "script.torch.cuda.device_count = lambda: 2 * (os.environ['RANK'] == '0')\n"
    code += "script.torch.cuda.set_device = print\n"
    code += "import types\nof_one = types.SimpleNamespace(uuid='GPU-1')\n"
    code += "script.torch.cuda.get_device_properties = lambda device: of_one\n"
    code += "os.environ['LOCAL_RANK'] = '0'\n"  # each is the first of its machine
    code += "script.dist.init_process_group = lambda *a, **b: script.time.sleep(60)\n"  # nccl would wait
    done = warm_torchrun(CHANGED, code, PYTHONPATH=LABS)
    assert "rank 1 is on cpu, rank 0 is not: see --device" in done.stdout, done.stdout


def test_a_learning_rate_that_is_too_high_is_told_in_one_line():
    done = warm_torchrun(TRAIN, "--lr", "1e30", "--clip", "0", "--warm-up", "0", "--log-every", "2")
    assert done.returncode == 2, done.stdout
    assert "the loss or the model is not finite; try a lower --lr" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_line_of_json_every_few_steps_and_at_the_end():
    """The first one tells how the run was started."""
    options = ("--epochs", "2", "--log-every", "10", "--amp", "--peak-tflops", "2")
    done = warm_torchrun(TRAIN, *options)
    assert done.returncode == 0, done.stdout
    first, *lines = lines_of(done)
    assert (first["ranks"], first["device"], first["torch"]) == (2, "cpu", torch.__version__)
    assert first["options"]["batch_size"] == 48
    steps = [line for line in lines if "step" in line]
    assert [line["step"] for line in steps] == [10, 20, 30, 40, 50, 58]
    keys = {"step", "loss", "lr", "gradient_norm", "images/s", "tflops_per_rank", "mfu"}
    keys |= {"peak_memory_gib", "time"}
    assert all(line.keys() == keys for line in steps)
    for line in steps:
        assert line["gradient_norm"] > 0
        assert abs(line["mfu"] - line["tflops_per_rank"] / 2) <= 1e-4
    assert [line["images"] for line in lines if "epoch" in line] == [360, 360]


def test_a_run_that_resumes_with_other_ranks_equals_the_unbroken_one(tmp_path: Path):
    """Two ranks, then one, then three; each resumes in the middle of an epoch of 28 steps."""
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
        assert f"\nresuming from {name}\n" in done.stdout
    for name in complete(three):
        assert_same_state(whole / name, three / name)
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_same_state(whole / "step_00000049", three / "step_00000056")

    refused = warm_torchrun(TRAIN, *common, "--lr", "0.05", "--seed", "1", *saving, three)
    assert refused.returncode == 2
    assert refused.stdout.splitlines()[1:] == [
        "step_00000056 has other settings: lr 0.05 (was 0.1), micro_batch None (was 9), seed 1 (was 0); "
        "allow them, or use another folder"
    ]


def test_the_learning_rate_and_the_epochs_may_change_on_request(tmp_path: Path):
    saving = ("--save-every", "29", "--checkpoints", tmp_path)
    assert warm_torchrun(TRAIN, "--epochs", "1", *saving, ranks=1).returncode == 0
    changed = ("--epochs", "2", "--lr", "0.01", "--weight-decay", "0.9")
    refused = warm_torchrun(TRAIN, *changed, *saving, ranks=1)
    assert refused.returncode == 2
    assert "epochs 2 (was 1), lr 0.01 (was 0.1), weight_decay 0.9 (was 0.0001); allow them," in refused.stdout
    done = warm_torchrun(TRAIN, *changed, "--allow-changes", *saving, ranks=1)
    assert done.returncode == 0, done.stdout
    assert [line["epoch"] for line in lines_of(done) if "epoch" in line] == [1, 2]
    assert complete(tmp_path) == ["step_00000029", "step_00000058"]
    first, last = (state_in(tmp_path / name)["model"]["8.weight"].norm() for name in complete(tmp_path))
    assert last < 0.95 * first  # a decay of 0.0001 leaves more than 0.99 of it
    tested = warm_torchrun(TRAIN, *changed, "--evaluate", *saving, ranks=2)
    [again], last = [line for line in lines_of(tested) if "epoch" in line], lines_of(done)[-1]
    assert again.pop("time") > last.pop("time")
    assert again == last


def shard_of(checkpoint: Path) -> Path:
    [shard] = checkpoint.glob("*.distcp")
    return shard


def flip(file: Path, count: int = 64) -> None:
    """Change so many bytes in the middle of a file."""
    content = bytearray(file.read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + count):
        content[place] ^= 0xFF
    file.write_bytes(content)


def cut_short(checkpoint: Path) -> None:
    shard = shard_of(checkpoint)
    shard.write_bytes(shard.read_bytes()[:-1000])


def change_a_setting(checkpoint: Path) -> None:
    record = checkpoint / "run.json"
    record.write_text(record.read_text().replace('"lr": 0.1', '"lr": 0.3'))


def empty(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def make_a_file(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.write_text("not a folder")


def make_metadata_a_folder(checkpoint: Path) -> None:
    (checkpoint / ".metadata").unlink()
    (checkpoint / ".metadata").mkdir()


def copy_the_one_before(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.with_name("step_00000010"), checkpoint)


DAMAGED = "does not match its checksum"
SPOILT = {  # what is done to a checkpoint: what is told
    "64 bytes are flipped": (lambda checkpoint: flip(shard_of(checkpoint)), f"__0_0.distcp {DAMAGED}"),
    "a shard is cut short": (cut_short, f"__0_0.distcp {DAMAGED}"),
    "a shard is missing": (lambda checkpoint: shard_of(checkpoint).unlink(), "__0_0.distcp is missing"),
    "a byte of .metadata": (lambda checkpoint: flip(checkpoint / ".metadata", 1), f".metadata {DAMAGED}"),
    "run.json is empty": (
        lambda checkpoint: (checkpoint / "run.json").write_bytes(b""),
        f"run.json {DAMAGED}",
    ),
    "run.json says otherwise": (change_a_setting, f"run.json {DAMAGED}"),
    "run.json is missing": (lambda checkpoint: (checkpoint / "run.json").unlink(), "run.json is missing"),
    "the folder is empty": (empty, "run.json is missing"),
    "a file has its name": (make_a_file, f"run.json {DAMAGED}"),
    ".metadata is a folder": (make_metadata_a_folder, f".metadata {DAMAGED}"),
    "it is a copy of another": (copy_the_one_before, "run.json is that of another step"),
}
IMPATIENT = "checkpointing.PATIENCE_S = checkpointing.AGAIN_S = 0.2"
ONE_EPOCH = ("--epochs", "1", "--float64", "--save-every", "10", "--keep", "9", "--checkpoints")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of an unbroken run: steps 10, 20 and 29."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert warm_torchrun(TRAIN, *ONE_EPOCH, folder, ranks=1).returncode == 0
    return folder


def told_of(done: Done) -> list[str]:
    return [line for line in done.stdout.splitlines() if not line.startswith("{")]


def some_of(whole: Path, folder: Path, *steps: int) -> Path:
    for step in steps:
        shutil.copytree(whole / f"step_{step:08d}", folder / f"step_{step:08d}")
    return folder


@pytest.mark.parametrize("what", SPOILT)
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_is_taken(what: str, whole: Path, tmp_path: Path):
    """Names that only look like ours are left alone."""
    folder = some_of(whole, tmp_path / "run", 10, 20)
    shutil.copytree(whole / "step_00000020", folder / "step_best")
    (folder / "step_mine.part").mkdir()
    spoil, problem = SPOILT[what]
    spoil(folder / "step_00000020")
    done = warm_torchrun(CHANGED, IMPATIENT, *ONE_EPOCH, folder, PYTHONPATH=LABS)
    assert done.returncode == 0, done.stdout
    aside = ["step_00000020 is now step_00000020.broken"] if DAMAGED in problem else []
    assert told_of(done) == [f"step_00000020: {problem}", *aside, "resuming from step_00000010"]
    names = {"step_00000020", "step_00000020.broken", "step_best", "step_mine.part"}
    assert names <= {path.name for path in folder.iterdir()}
    assert_same_state(folder / "step_00000029", whole / "step_00000029")


def test_if_no_checkpoint_is_whole_nothing_is_renamed(whole: Path, tmp_path: Path):
    folder = some_of(whole, tmp_path / "run", 10)
    flip(shard_of(folder / "step_00000010"))
    refused = warm_torchrun(TRAIN, *ONE_EPOCH, folder)
    assert refused.returncode == 2
    assert told_of(refused)[1:] == ["run has no whole checkpoint; move it away to start over"]
    assert complete(folder) == ["step_00000010"]


FAIL = """
def fail(file, real=checkpointing.sum_of, left=[{times}]):
    if file.suffix == ".distcp" and left[0]:
        left[0] -= 1
        raise {error}
    return real(file)

checkpointing.sum_of = fail
checkpointing.PATIENCE_S = {patience}
"""


@pytest.mark.parametrize("error", ["OSError(errno.EIO, 'Input/output error')", "FileNotFoundError()"])
def test_a_file_that_cannot_be_read_for_a_moment_costs_nothing(error: str, whole: Path, tmp_path: Path):
    folder = some_of(whole, tmp_path / "run", 10, 20)
    code = FAIL.format(times=2, error=error, patience=60)
    done = warm_torchrun(CHANGED, code, *ONE_EPOCH, folder, ranks=1, PYTHONPATH=LABS)
    assert done.returncode == 0, done.stdout
    assert told_of(done) == ["resuming from step_00000020"]


def test_an_error_of_the_disk_is_no_damage(whole: Path, tmp_path: Path):
    folder = some_of(whole, tmp_path / "run", 10, 20)
    code = FAIL.format(times=1000, error="OSError(errno.EIO, 'Input/output error')", patience=0)
    done = warm_torchrun(CHANGED, code, *ONE_EPOCH, folder, PYTHONPATH=LABS)
    assert done.returncode == 2
    error = "__0_0.distcp: [Errno 5] Input/output error"
    assert told_of(done) == [f"step_00000020 cannot be read now, {error}"]
    assert complete(folder) == ["step_00000010", "step_00000020"]


def test_an_empty_folder_of_a_high_step_costs_no_minute(whole: Path, tmp_path: Path):
    """Nothing is made quick here: a start that waits for its files to appear sleeps."""
    folder = some_of(whole, tmp_path / "run", 10)
    (folder / "step_99999999").mkdir()
    code = "def no(seconds): raise SystemExit('it sleeps')\ncheckpointing.time.sleep = no"
    done = warm_torchrun(CHANGED, code, *ONE_EPOCH, folder, ranks=1, PYTHONPATH=LABS)
    assert done.returncode == 0, done.stdout
    assert told_of(done) == ["step_99999999: run.json is missing", "resuming from step_00000010"]


def test_a_run_waits_for_the_lock_of_a_machine_that_has_died(whole: Path, tmp_path: Path):
    """A stand-in for NFS, whose server keeps a dead client's lock for its lease: a process that lives on."""
    folder = some_of(whole, tmp_path / "run", 10)
    take = "import fcntl, sys, time\nlock = open(sys.argv[1], 'w')\nfcntl.lockf(lock, fcntl.LOCK_EX)\n"
    take += "print('host node7, process 42, job 1234', file=lock, flush=True)\nprint(flush=True)\n"
    take += "time.sleep(15)"
    with subprocess.Popen([sys.executable, "-c", take, folder / ".lock"], stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        done = warm_torchrun(TRAIN, *ONE_EPOCH, folder)
    assert done.returncode == 0, done.stdout
    waiting, resuming = told_of(done)
    told = f"{folder} is locked by host node7, process 42, job 1234; waiting 120 s, "
    assert waiting == f"{told}as its machine may be dead"
    assert resuming == "resuming from step_00000010"


def test_a_second_job_in_the_folder_is_refused_and_removes_nothing(whole: Path, tmp_path: Path):
    folder = some_of(whole, tmp_path / "run", 10)
    part = folder / "step_00000020.part"
    part.mkdir()
    with (folder / ".lock").open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # as the first job's rank 0 does
        second = warm_torchrun(CHANGED, "checkpointing.LEASE_S = 0.2", *ONE_EPOCH, folder, PYTHONPATH=LABS)
        tested = warm_torchrun(TRAIN, "--evaluate", *ONE_EPOCH, folder)
        assert part.is_dir()
    assert second.returncode == 2
    _, refusal = told_of(second)
    way_out = f"if that has ended, remove {folder / '.lock'}, else use another folder"
    assert refusal == f"{folder} is locked by another job; {way_out}"
    assert tested.returncode == 0, tested.stdout
    third = warm_torchrun(TRAIN, *ONE_EPOCH, folder)
    assert third.returncode == 0, third.stdout
    assert not part.exists()


def test_without_locks_a_run_says_so_and_continues(tmp_path: Path):
    code = "def no(*_): raise OSError(errno.ENOLCK, 'No locks available')\ncheckpointing.fcntl.lockf = no"
    done = warm_torchrun(CHANGED, code, *ONE_EPOCH, tmp_path, PYTHONPATH=LABS)
    assert done.returncode == 0, done.stdout
    [line] = told_of(done)
    assert line.endswith("[Errno 37] No locks available; start no second job in that folder")


def test_keep_is_enforced_at_a_start_too(whole: Path, tmp_path: Path):
    folder = some_of(whole, tmp_path / "run", 10, 20, 29)
    done = warm_torchrun(TRAIN, *ONE_EPOCH, folder, "--keep", "1")
    assert done.returncode == 0, done.stdout
    assert complete(folder) == ["step_00000029"]


def test_an_option_that_is_new_in_the_script_ends_no_old_run(whole: Path, tmp_path: Path):
    folder = some_of(whole, tmp_path / "run", 10)
    file = folder / "step_00000010" / "run.json"
    record = json.loads(file.read_text())
    del record["settings"]["augment"], record["sha256"]  # as if the script had had no --augment then
    record["sha256"] = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    file.write_text(json.dumps(record))
    done = warm_torchrun(TRAIN, *ONE_EPOCH, folder)
    assert done.returncode == 0, done.stdout
    assert "resuming from step_00000010" in told_of(done)


def test_what_is_not_a_number_is_not_saved(tmp_path: Path):
    options = ("--lr", "1e20", "--clip", "0", "--warm-up", "0", "--save-every", "4", "--log-every", "100")
    done = warm_torchrun(TRAIN, *options, "--checkpoints", tmp_path)
    assert done.returncode == 2, done.stdout
    assert "step 4: the loss or the model is not finite; try a lower --lr" in done.stdout
    assert complete(tmp_path) == []
    done = warm_torchrun(TRAIN, "--epochs", "1", *options[:-1], "1000", "--save-every", "1000")
    assert done.returncode == 2  # it is seen at the end at the latest
    assert "step 29: the loss or the model is not finite" in done.stdout


def test_the_scale_of_fp16_is_saved_and_the_newest_are_kept(tmp_path: Path):
    common = ("--amp", "fp16", "--epochs", "1", "--save-every", "10", "--checkpoints", tmp_path / "run")
    done = warm_torchrun(TRAIN, *common)
    assert done.returncode == 0, done.stdout
    assert complete(tmp_path / "run") == ["step_00000020", "step_00000029"]
    shutil.rmtree(tmp_path / "run" / "step_00000029")
    again = warm_torchrun(TRAIN, *common)
    assert "\nresuming from step_00000020\n" in again.stdout
    scaler = state_in(tmp_path / "run" / "step_00000029")["scaler"]
    assert (scaler["scale"], scaler["_growth_tracker"]) == (65536.0, 29)  # no step was ever skipped


COUNTS_GRAPHS = """
import runpy
import sys
from pathlib import Path
from torch._dynamo.utils import counters
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("compiled graphs:", counters["stats"]["unique_graphs"])
"""


def test_a_compiled_run_and_another_read_each_others_checkpoints(tmp_path: Path):
    common = ("--epochs", "1", "--save-every", "14", "--keep", "9", "--checkpoints")
    compiled = tmp_path / "compiled"
    counts = tmp_path / "counts_graphs.py"
    counts.write_text(COUNTS_GRAPHS, encoding="utf-8")
    done = warm_torchrun(counts, TRAIN, "--compile", *common, compiled, ranks=1)
    assert done.returncode == 0, done.stdout
    assert re.search(r"compiled graphs: [1-9]", done.stdout), done.stdout
    plain = tmp_path / "plain"
    shutil.copytree(compiled / "step_00000014", plain / "step_00000014")
    done = warm_torchrun(TRAIN, "--allow-changes", *common, plain, ranks=1)
    assert "\nresuming from step_00000014\n" in done.stdout
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
    newest = max(path.name for path in folder.glob("step_*") if not path.suffix)  # a kill may leave a .part
    assert json.loads((folder / newest / "run.json").read_text())["step"] == int(newest.removeprefix("step_"))
    assert (folder / newest / ".metadata").is_file()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_the_exit_code_tells_that_a_run_can_resume(number: int, tmp_path: Path):
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
def evaluate(*arguments, real=script.Trainer.evaluate):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*arguments)

script.Trainer.evaluate = evaluate
"""


def test_a_signal_in_the_evaluation_stops_the_run_after_it(tmp_path: Path):
    arguments = ("--epochs=2", f"--checkpoints={tmp_path / 'run'}")
    stopped = warm_torchrun(CHANGED, SIGNAL_IN_EVALUATION, *arguments, ranks=1, PYTHONPATH=LABS)
    assert stopped.returncode == SAVED_AND_LEFT, stopped.stdout
    assert [line for line in lines_of(stopped) if "epoch" in line][0]["epoch"] == 1
    again = warm_torchrun(TRAIN, *arguments, ranks=1)
    assert again.returncode == 0
    assert [line["epoch"] for line in lines_of(again) if "epoch" in line] == [2]


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -f in units of 1,024 bytes")
def test_a_full_disk_is_told_at_each_save_and_ends_the_run_at_the_third(tmp_path: Path):
    """No file may grow beyond 100 KiB here; a rank's part of a checkpoint is larger."""
    folder = tmp_path / "run"
    script = f"ulimit -f 100; exec '{sys.executable}' '{TRAIN}' --epochs 5 --checkpoints '{folder}'"
    done = command("bash", "-c", script)
    assert done.returncode == 2, done.stdout
    *each, last, stops = told_of(done)
    assert [line[:27] for line in each] == [f"step_000000{n} was not saved" for n in (29, 58, 87, 87)]
    assert last.startswith("step_00000087 was not saved in two tries, and all since the start is lost: ")
    assert stops == f"2 saves before that have failed, too: see {folder}"
    assert [line["epoch"] for line in lines_of(done) if "epoch" in line] == [1, 2]
    assert complete(folder) == []


FULL_ONCE = """
def write(*arguments, real=checkpointing.CommittingWriter.write_data, calls=[]):
    calls.append(1)
    if len(calls) == 2:
        raise OSError(errno.ENOSPC, "No space left on device")
    return real(*arguments)

checkpointing.CommittingWriter.write_data = write
checkpointing.AGAIN_S = 0.2
"""


def test_the_last_save_is_tried_again(tmp_path: Path):
    done = warm_torchrun(CHANGED, FULL_ONCE, "--epochs=2", f"--checkpoints={tmp_path}", PYTHONPATH=LABS)
    assert done.returncode == 0, done.stdout
    [line] = told_of(done)
    assert line.startswith("step_00000058 was not saved: OSError: [Errno 28] No space left on device")
    assert complete(tmp_path) == ["step_00000029", "step_00000058"]


def test_a_save_by_time_and_checkpoints_that_are_never_removed(tmp_path: Path):
    """Each step takes 0.2 s here, on rank 1; all ranks save after the same step."""
    slow = "real = script.Trainer.train_step\n"
    slow += "def step(*a): script.time.sleep(0.2 * (os.environ['RANK'] == '1')); real(*a)\n"
    slow += "script.Trainer.train_step = step"
    by_time = ("--epochs", "1", "--save-every", "1000", "--save-minutes", "0.03", "--keep", "9")
    done = warm_torchrun(CHANGED, slow, *by_time, "--checkpoints", tmp_path / "time", PYTHONPATH=LABS)
    assert done.returncode == 0, done.stdout
    steps = [int(name[5:]) for name in complete(tmp_path / "time")]
    assert len(steps) >= 3 and steps[-1] == 29, steps  # 5.8 s: about every 9 steps, and the last one
    options = ("--epochs", "1", "--save-every", "4", "--keep", "1", "--keep-every", "8")
    done = warm_torchrun(TRAIN, *options, "--checkpoints", tmp_path / "steps")
    assert done.returncode == 0, done.stdout
    assert complete(tmp_path / "steps") == [f"step_{step:08d}" for step in (8, 16, 24, 29)]


def test_batch_norm_over_all_ranks_is_a_choice_and_needs_gpus():
    done = warm_torchrun(TRAIN, "--sync-batch-norm")
    assert done.returncode == 2
    assert "--sync-batch-norm: torch has it for GPUs alone" in done.stdout


def test_the_list_of_files_is_read_by_one_rank(images: Path):
    code = "import torchvision.datasets as of_files\n"
    code += "def list_it(*a, real=of_files.ImageFolder, **b):\n"
    code += "    print('rank', os.environ['RANK'], 'lists', flush=True)\n    return real(*a, **b)\n"
    code += "of_files.ImageFolder = list_it"
    done = warm_torchrun(CHANGED, code, *SMALL, images, PYTHONPATH=LABS)
    assert done.returncode == 0, done.stdout
    assert [line for line in done.stdout.splitlines() if "lists" in line] == ["rank 0 lists"] * 2


def test_adamw_decays_matrices_and_filters_alone(tmp_path: Path):
    options = ("--optimizer", "adamw", "--epochs", "1", "--checkpoints", tmp_path / "run")
    done = warm_torchrun(TRAIN, *options)
    assert done.returncode == 0, done.stdout
    assert lines_of(done)[-1]["accuracy"] > 0.8
    groups = state_in(tmp_path / "run" / "step_00000029")["optimizer"]["groups"]
    decayed = {name for name, [group] in groups.items() if group["weight_decay"] > 0}
    assert decayed == {"0.weight", "4.weight", "8.weight"}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    from PIL import Image

    for part, count in (("train", 3), ("test", 1)):
        for shade, name in ((40, "dark"), (200, "light")):
            target = tmp_path / "images" / part / name
            target.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (20, 12), (shade, shade, shade)).save(target / f"{number}.png")
    return tmp_path / "images"


SMALL = ("--side", "32", "--batch-size", "4", "--epochs", "2", "--data")


def test_a_folder_of_images_is_trained_on_with_batch_norm(images: Path):
    done = warm_torchrun(TRAIN, *SMALL, images, "--model", "resnet18")
    assert done.returncode == 0, done.stdout
    assert [line["images"] for line in lines_of(done) if "images" in line] == [2, 2]


def test_a_run_whose_images_have_moved_resumes_and_with_others_it_is_refused(images: Path, tmp_path: Path):
    saved = ("--checkpoints", tmp_path / "run")
    assert warm_torchrun(TRAIN, *SMALL, images, *saved).returncode == 0
    moved = images.rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "run" / "step_00000002")
    done = warm_torchrun(TRAIN, *SMALL, moved, *saved)
    assert done.returncode == 0, done.stdout
    assert "resuming from step_00000001" in told_of(done)
    first = moved / "train" / "dark" / "0.png"
    content = first.read_bytes()
    first.write_bytes((moved / "train" / "light" / "0.png").read_bytes())  # another image, the same name
    assert_other_images_are_refused(warm_torchrun(TRAIN, *SMALL, moved, *saved))
    first.write_bytes(content)
    first.rename(moved / "train" / "dark" / "9.png")
    assert_other_images_are_refused(warm_torchrun(TRAIN, *SMALL, moved, *saved))


def assert_other_images_are_refused(done: Done) -> None:
    assert done.returncode == 2
    assert told_of(done)[0].startswith("step_00000002 has other settings: images ")


def test_an_augmented_image_is_the_same_on_every_rank_and_another_in_the_next_epoch(images: Path):
    """Its crop and its mirror image are drawn by torchvision; ``images_of`` asks rank 0 for the list."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        data = lab_10_batches.images_of(images, 16, augment=True)
    finally:
        dist.destroy_process_group()
    once, again = (lab_10_batches.Seeded(data.train, 0) for _ in range(2))
    assert torch.equal(once[0, 5][0], again[0, 5][0])
    of_epochs = [once[epoch, 5][0] for epoch in range(9)]
    assert torch.equal(of_epochs[0], once[0, 5][0])  # whatever was drawn in between
    assert of_epochs[0].shape == (3, 16, 16) == data.test[0][0].shape


def test_machines_with_different_images_are_refused():
    code = "other = script.digits()._replace(known_by=int(os.environ['RANK']))\n"
    code += "script.digits = lambda augment: other"
    done = warm_torchrun(CHANGED, code, "--epochs", "1", PYTHONPATH=LABS)
    assert done.returncode == 2
    assert "the machines of this job have different images" in done.stdout


def test_a_folder_with_other_classes_to_test_is_told_in_one_line(images: Path):
    (images / "test" / "light").rename(images / "test" / "bright")
    done = warm_torchrun(TRAIN, *SMALL, images)
    assert done.returncode == 2
    assert "train has the classes ['dark', 'light'], test has ['bright', 'dark']" in done.stdout


def test_the_files_alone_train_die_and_resume(tmp_path: Path):
    """Copied into an empty folder, where nothing else of this course can be imported."""
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "shared.py").write_text("raise ImportError('a script that is copied has no shared')\n")
    alone = tmp_path / "alone"
    alone.mkdir()
    for file in FILES:
        shutil.copy(file, alone)
    surroundings = environment(None, PYTHONPATH=str(trap))
    arguments = ("--epochs", "4", "--float64", "--save-every", "5", "--checkpoints")
    lab = SleepingLab(alone / "run")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = torchrun_command(Path("lab_10_train.py"), 2, *arguments, alone / "run")
    with subprocess.Popen(first, cwd=alone, env=surroundings, **quiet) as launcher:
        try:
            wait_until(lambda: any((alone / "run").glob("step_*[0-9]")), "the first checkpoint is there")
            launcher.kill()
            wait_until(lambda: not lab.processes(), "no rank outlives its launcher")
        finally:
            lab.end()
    second = torchrun_command(Path("lab_10_train.py"), 3, *arguments, "run")
    done = subprocess.run(second, cwd=alone, env=surroundings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resuming from step_" in done.stdout
    unbroken = warm_torchrun(TRAIN, *arguments, tmp_path / "unbroken", ranks=1)
    assert unbroken.returncode == 0, unbroken.stdout
    assert_same_state(alone / "run" / "step_00000116", tmp_path / "unbroken" / "step_00000116")
