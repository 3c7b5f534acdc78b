"""The script of lesson 10, killed or signalled at a moment of its run, then started again: what is lost?

``python -m tests.kills`` does it 60 times and prints a table; ``test_lesson_10_kills.py`` judges its rows.

A launch is a fork that has torch already and runs torchrun's own agent (``elastic_launch``), whose ranks are
forks again. So the moment is exact: the last rank strikes, itself or its launcher, from within the script.
"""

import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import ModuleType

from shared.runtime.children import is_running
from tests.helpers import ROOT, SCRIPTS, environment
from tests.launch import SERVERS, Job, begin, end, forget_multiprocessing, run_job

KINDS = {  # what happens: (signal, to whom)
    "kill -9 of a rank": (signal.SIGKILL, "rank"),
    "kill -9 of the launcher": (signal.SIGKILL, "launcher"),
    "SIGTERM": (signal.SIGTERM, "launcher"),
    "SIGINT": (signal.SIGINT, "launcher"),
    "SIGHUP": (signal.SIGHUP, "launcher"),
    "SIGUSR1": (signal.SIGUSR1, "launcher"),
}
# The newest complete checkpoint after a kill at this moment. Signals save where they stop.
KEPT = {"during a step": 4, "during a save": 4, "between saves": 8, "during evaluation": 8, "last step": 16}
IMAGES = 120
STEPS_OF_EPOCH = 10
STEPS = 20
SAVE_EVERY = 4
OPTIONS = f"--float64 --augment --epochs=2 --batch-size={IMAGES // STEPS_OF_EPOCH} --log-every=1 --keep=9"
PATIENCE_S = 120.0  # bounds a hang


@dataclass(frozen=True)
class Case:
    kind: str
    moment: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.moment}, {self.ranks} rank(s)"

    @property
    def is_kill(self) -> bool:
        return self.kind.startswith("kill")


CASES = [Case(*fields) for fields in product(KINDS, KEPT, (1, 2))]


@dataclass
class Outcome:
    """What a case has come to."""

    code: int  # of the launcher
    done: int  # steps that rank 0 had logged
    kept: int  # steps in the newest complete checkpoint that the killed run has left
    rank_codes: list[int] = field(default_factory=list)  # of those ranks that could tell
    traceback: int = 0  # lines of the longest traceback that a rank has printed
    resumed_from: int = 0
    resumed_code: int = -1
    epochs: list[int] = field(default_factory=list)  # that either run has tested
    epochs_before: list[int] = field(default_factory=list)  # that the first run has tested
    said: str = ""

    @property
    def lost(self) -> int:
        return self.done - self.kept


def few_images(script: ModuleType) -> None:
    """Have the script train on a few digits, and test in batches of five."""
    subset = importlib.import_module("torch.utils.data").Subset
    loader = importlib.import_module("torch.utils.data").DataLoader
    digits, loaders = script.digits, script.loaders

    def few_digits() -> object:
        data = digits()
        return replace(data, train=subset(data.train, range(IMAGES)), test=subset(data.test, range(60)))

    def small_batches(*arguments: object) -> tuple:
        to_train, to_test = loaders(*arguments)
        return to_train, loader(to_test.dataset, batch_size=5)

    script.digits = few_digits
    script.loaders = small_batches


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lab_10_train", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["lab_10_train"] = script
    spec.loader.exec_module(script)
    few_images(script)
    return script


# --- In the processes of the run that is killed ---


class Striker:
    """In the last rank: strikes once, when the script comes to the moment."""

    def __init__(self, case: Case, script: ModuleType, checkpoints: Path) -> None:
        self.case = case
        self.checkpoints = checkpoints
        self.struck = False
        self.sign: object = None
        dcp = importlib.import_module("torch.distributed.checkpoint")
        self.before(dcp.FileSystemWriter, "write_data", self.at_save)
        self.before(script.Trainer, "train_step", self.at_step)
        self.before(script.StopSign, "__init__", self.remember)
        self.before(script, "evaluate", self.at_evaluation)

    def before(self, owner: object, name: str, look: Callable) -> None:
        original = getattr(owner, name)

        def wrapper(*arguments: object, **options: object) -> object:
            look(arguments[0])
            return original(*arguments, **options)

        setattr(owner, name, wrapper)

    def remember(self, sign: object) -> None:
        self.sign = sign

    def at_save(self, writer: object) -> None:
        if self.case.moment == "during a save" and Path(writer.path).name == "step_00000008.part":
            self.strike()

    def at_evaluation(self, trainer: object) -> None:
        if self.case.moment == "during evaluation" and trainer.step == STEPS_OF_EPOCH:
            self.wait_for(self.checkpoints / "step_00000008")
            self.strike()

    def at_step(self, trainer: object) -> None:
        step = trainer.step + 1  # this one
        if (self.case.moment, step) in (("during a step", 6), ("last step", STEPS)):
            self.wait_for(self.checkpoints / f"step_{KEPT[self.case.moment]:08d}")
            self.strike()
        elif self.case.moment == "between saves" and step == 10:
            self.wait_for(self.checkpoints / "step_00000008")  # it must not need another save for its name
            self.strike()
        elif self.case.moment == "during a save" and step == 9:
            until(lambda: self.struck, "the strike in the thread that saves")

    def wait_for(self, checkpoint: Path) -> None:
        until(checkpoint.is_dir, f"{checkpoint.name} to be complete")

    def strike(self) -> None:
        """Send the signal; if it is one to stop, go on when the script has noted it."""
        number, to = KINDS[self.case.kind]
        os.kill(os.getpid() if to == "rank" else os.getppid(), number)
        until(lambda: self.sign is not None and self.sign.asked, f"{self.case.kind} to arrive")
        self.struck = True


def until(condition: Callable[[], bool], what: str) -> None:
    end_at = time.monotonic() + float(os.environ["KILLS_PATIENCE_S"])
    while not condition():
        if time.monotonic() > end_at:
            os.write(2, f"waited in vain for {what}\n".encode())
            os._exit(3)
        time.sleep(0.01)


def be_rank(case: Case, script_path: str, folder: str) -> None:
    """Be a rank of the script, as its launcher starts it."""
    rank = int(os.environ["RANK"])
    written = os.open(Path(folder) / f"rank_{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    Path(folder, f"rank_{rank}.pid").write_text(str(os.getpid()))
    script = load_script(Path(script_path))
    checkpoints = Path(folder) / "run"
    if rank == case.ranks - 1:
        Striker(case, script, checkpoints)
    code = script.main([*OPTIONS.split(), f"--save-every={SAVE_EVERY}", f"--checkpoints={checkpoints}"])
    Path(folder, f"rank_{rank}.code").write_text(str(code))
    sys.exit(code)


def be_launcher(case: Case, script_path: str, folder: str, patience_s: float) -> None:
    """Be torchrun: its agent, with forks for ranks."""
    begin(Path(folder) / "launcher.txt")
    forget_multiprocessing()
    os.environ.clear()
    seconds = str(int(patience_s))
    os.environ.update(environment(TORCH_ELASTIC_SHUTDOWN_TIMEOUT=seconds, KILLS_PATIENCE_S=seconds))
    api = importlib.import_module("torch.distributed.launcher.api")
    logs = importlib.import_module("torch.distributed.elastic.multiprocessing").DefaultLogsSpecs
    config = api.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=case.ranks,
        run_id="kills",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
        logs_specs=logs(),
        signals_to_handle="SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
    )
    api.elastic_launch(config, be_rank)(case, script_path, folder)


# --- Outside ---


def kill_and_go_on(case: Case, script: Path, folder: Path, patience_s: float = PATIENCE_S) -> Outcome:
    """One case: a launch that is killed, then a second one on another number of ranks."""
    folder.mkdir()
    SERVERS.start()
    launcher = SERVERS.fork(0, be_launcher, case, str(script), str(folder), patience_s)
    launcher.join(4 * patience_s)
    code = launcher.exitcode
    wait_until_gone([int(path.read_text()) for path in folder.glob("rank_*.pid")])
    end([launcher], signal.SIGKILL)
    text = "".join(path.read_text() for path in sorted(folder.glob("rank_?.txt")))
    lines = rows_in(text)
    outcome = Outcome(
        code=code,
        done=max((line["step"] for line in lines if "step" in line), default=0),
        kept=newest(folder / "run"),
        rank_codes=[int(path.read_text()) for path in sorted(folder.glob("rank_?.code"))],
        traceback=longest_traceback(text),
        said=text,
    )
    again = run_job(
        Job(
            SCRIPTS / "few_digits.py",
            (script, *OPTIONS.split(), f"--save-every={SAVE_EVERY}", f"--checkpoints={folder / 'run'}"),
            ranks=3 - case.ranks,
        )
    )
    outcome.resumed_code = again.returncode
    match = re.search(r"^going on from step_(\d+)$", again.stdout, re.MULTILINE)
    outcome.resumed_from = int(match[1]) if match else 0
    outcome.epochs_before = [line["epoch"] for line in lines if "epoch" in line]
    then = [line["epoch"] for line in rows_in(again.stdout) if "epoch" in line]
    outcome.epochs = sorted({*outcome.epochs_before, *then})
    outcome.said += again.stdout
    return outcome


def rows_in(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"') and line.endswith("}")]


def newest(folder: Path) -> int:
    names = [path.name for path in folder.glob("step_*") if re.fullmatch(r"step_\d{8}", path.name)]
    return max((int(name.removeprefix("step_")) for name in names), default=0)


def longest_traceback(text: str) -> int:
    """Its lines: from its heading to the first line that is not indented, which names the error."""
    longest = 0
    length = 0
    for line in text.splitlines():
        if line.startswith("Traceback"):
            length = 1
        elif length:
            length += 1
            longest = max(longest, length)
            if not line.startswith(" "):
                length = 0
    return longest


def wait_until_gone(pids: list[int]) -> None:
    end_at = time.monotonic() + PATIENCE_S
    while any(is_running(pid) for pid in pids) and time.monotonic() < end_at:
        time.sleep(0.02)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def unbroken(script: Path, folder: Path) -> Path:
    """The checkpoints of a run that nobody disturbs, on one rank."""
    arguments = (script, *OPTIONS.split(), f"--save-every={SAVE_EVERY}", f"--checkpoints={folder}")
    done = run_job(Job(SCRIPTS / "few_digits.py", arguments, ranks=0))
    assert done.returncode == 0, done.stdout
    return folder


def largest_difference(one: Path, other: Path) -> float:
    """Between all tensors of two checkpoints: parameters and momentum."""
    states = [dict(tensors_in("", joined(path))) for path in (one, other)]
    assert states[0].keys() == states[1].keys()
    assert any("momentum" in name for name in states[0])
    return max(float((tensor - states[1][name]).abs().max()) for name, tensor in states[0].items())


def joined(checkpoint: Path) -> dict:
    torch = importlib.import_module("torch")
    format_utils = importlib.import_module("torch.distributed.checkpoint.format_utils")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "joined.pt"
        format_utils.dcp_to_torch_save(checkpoint, file)
        return torch.load(file, weights_only=True)


def tensors_in(name: str, value: object):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors_in(f"{name}.{key}", inner)
    elif hasattr(value, "abs"):
        yield name, value


def main() -> None:
    script = ROOT / "labs" / "lab_10_train.py"
    print(f"{'what':24} {'when':18} ranks  launcher  ranks' codes  done  kept  lost  traceback  difference")
    with tempfile.TemporaryDirectory() as name:
        whole = unbroken(script, Path(name) / "whole")
        for number, case in enumerate(CASES):
            folder = Path(name) / f"case_{number}"
            outcome = kill_and_go_on(case, script, folder)
            ended = "not equal"
            if outcome.resumed_code == 0:
                last = f"step_{STEPS:08d}"
                ended = f"{largest_difference(folder / 'run' / last, whole / last):.0e}"
            codes = ",".join(map(str, outcome.rank_codes))
            counts = f"{outcome.done:4}  {outcome.kept:4}  {outcome.lost:4}  {outcome.traceback:9}"
            print(
                f"{case.kind:24} {case.moment:18} {case.ranks:5}  {outcome.code:8}  {codes:12}  "
                f"{counts}  {ended}"
            )
            sys.stdout.flush()
            for problem in problems_of(case, outcome):
                print(f"    {problem}")


def problems_of(case: Case, one: Outcome) -> list[str]:
    """All that is wrong with an outcome, but for what the second run has learnt."""
    problems = []
    if one.resumed_code != 0 or one.epochs != [1, 2]:
        problems.append(f"the second run ended with {one.resumed_code}; tested are the epochs {one.epochs}")
    if one.resumed_from != one.kept:
        problems.append(f"it went on from {one.resumed_from}, not from {one.kept}")
    if case.is_kill:
        if one.kept != KEPT[case.moment]:
            problems.append(f"{one.kept} steps are kept, not {KEPT[case.moment]}")
        if one.lost > SAVE_EVERY:
            problems.append(f"{one.lost} steps are lost, more than {SAVE_EVERY}")
    else:
        if one.lost != 0:
            problems.append(f"{one.lost} steps are lost")
        if case.moment == "during evaluation" and one.epochs_before:
            problems.append("the evaluation went on to its end")
        if one.rank_codes != [75] * case.ranks:
            problems.append(f"exit codes of the ranks: {one.rank_codes}")
    expected = -signal.SIGKILL if case.kind == "kill -9 of the launcher" else 1
    if one.code != expected:
        problems.append(f"the launcher ended with {one.code}, not with {expected}")
    if one.traceback > 15:
        problems.append(f"a traceback of {one.traceback} lines")
    return problems


if __name__ == "__main__":
    main()
