"""A rank of the training script hangs: time-out, abort and restart, link by link, from the run's own log.

Run it:      python labs/lab_12_chain.py 2
Written by:  notebooks/12_uneven_inputs.ipynb

It starts torchrun with lab_12_hang. The last word is the number of ranks.
"""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import lab_10_train as script
import lab_12_hang
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from shared.runtime.errors import CourseError, InputError
from shared.runtime.run import die_with_launcher, run
from shared.training.parity import assert_all_equal

# torchrun, with one thing changed. When a rank has failed, torch 2.15 gives the others 30 s to obey SIGTERM.
# --shutdown-timeout and its variable count only when torchrun itself is ended; here they count always.
TORCHRUN = """
import os
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.run import main

close = PContext.close

def close_in_time(self, death_sig=None, timeout=30):
    close(self, death_sig, int(os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]))

PContext.close = close_in_time
main()
"""


@dataclass(frozen=True)
class Config:
    hang: lab_12_hang.Config = lab_12_hang.Config()
    grace_s: int = 2  # from SIGTERM to SIGKILL
    limit_s: int = 300
    tolerance: float = 1e-12  # float64


def launch(ranks: int, folder: Path, log: Path, cfg: Config) -> subprocess.Popen:
    """Start torchrun with the script that hangs; what it and its ranks say goes to ``log`` as it comes."""
    options = ["--standalone", f"--nproc-per-node={ranks}", "--max-restarts=1"]
    environment = {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(cfg.grace_s),
        "LOGLEVEL": "INFO",
        "CUDA_VISIBLE_DEVICES": "",  # nccl would end the processes that wait
    }
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-c", TORCHRUN, *options, lab_12_hang.__file__, folder],
            env=os.environ | environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_launcher,
        )


class Log:
    """What a run has said. ``find`` looks for one thing after the other, so it checks their order, too."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.links = 0

    def find(self, told: str, pattern: str) -> re.Match:
        """The next place that matches ``pattern``; prints what is ``told``."""
        match = re.compile(pattern).search(self.text, self.position)
        if match is None:
            raise CourseError(f"the chain breaks: no sign that {told}; the log ends:\n{self.text[-3000:]}")
        self.position = match.end()
        self.links += 1
        print(f"{self.links:2}. {told}")
        return match


def check_chain(text: str, ranks: int, cfg: Config) -> None:
    """Each link is there, and they follow each other."""
    log = Log(text)
    last = ranks - 1
    step = cfg.hang.hangs_in
    timeout_ms = 1000 * cfg.hang.timeout_s
    hangs = log.find(
        f"rank {last} hangs in step {step}: its process lives",
        rf"rank {last} hangs in step {step}, pid (?P<pid>\d+), complete: (?P<saved>.*)",
    )
    pid = hangs["pid"]
    newest = hangs["saved"].split(", ")[-1]
    log.find(
        f"another rank waits for it in backward() for {cfg.hang.timeout_s} s, raises and ends",
        rf"in train_step\n(?s:.{{,3000}}?)\.backward\(\)(?s:.{{,3000}}?)Timed out waiting {timeout_ms}ms",
    )
    log.find(f"the agent sends SIGTERM to rank {last}", rf"Sending process {pid} closing signal SIGTERM")
    log.find(f"rank {last} shows where it is: in never_comes_back()", r"line \d+ in never_comes_back")
    log.find(f"rank {last} notes SIGTERM and goes on hanging", rf"rank {last} notes SIGTERM and goes on")
    log.find(
        f"the agent sends SIGKILL {cfg.grace_s} s later",
        rf"Unable to shutdown process {pid} via .*, forcefully exiting",
    )
    failed = log.find(
        "the agent reports which rank failed first: not the one that hung",
        r"failed \(exitcode: 1\) local_rank: (\d+)",
    )
    if int(failed[1]) == last:
        raise CourseError(f"rank {last} was to hang, but it failed")
    log.find("one restart is left", r"Worker group FAILED\. 1/1 attempts left; will restart worker group")
    log.find("the agent starts all ranks again", r"Starting worker group")
    log.find(f"they go on from {newest}", rf"going on from {newest}\b")
    check_steps(text, newest, cfg)


def check_steps(text: str, newest: str, cfg: Config) -> None:
    """Which steps rank 0 made in each of its two lives."""
    made = [int(number) for number in re.findall(r"rank 0 has made step (\d+)", text)]
    first = list(range(1, cfg.hang.hangs_in))
    saved = int(newest.removeprefix("step_"))
    again = made[len(first) :]
    if made[: len(first)] != first or again != list(range(saved + 1, again[-1] + 1)):
        raise CourseError(f"the steps are {made}")
    print(f"steps 1 to {first[-1]}, then {again[0]} to {again[-1]}: {first[-1] - saved} were made twice")


def state_in(folder: Path) -> tuple[str, list[tuple[str, torch.Tensor]]]:
    """The newest checkpoint's name, and all tensors in it: parameters and momentum."""
    newest = max(folder.glob("step_????????"))
    file = folder / "whole.pt"
    dcp_to_torch_save(newest, file)
    return newest.name, sorted(tensors_in("", torch.load(file, weights_only=False)))


def tensors_in(name: str, value: object):
    """(name, tensor) of all tensors in nested dicts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors_in(f"{name}.{key}", inner)
    elif isinstance(value, torch.Tensor):
        yield name, value


def unbroken(folder: Path, cfg: Config) -> None:
    """The same training in this one process, which nothing disturbs."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = script.main([*cfg.hang.options, f"--checkpoints={folder}"])
    if code != 0:
        raise CourseError(f"the unbroken run ended with exit code {code}: {said.getvalue()}")
    for number, handler in kept.items():
        signal.signal(number, handler)  # the script has its own: it saves first


def check_end(broken: Path, whole: Path, cfg: Config) -> None:
    """Both folders end with the same step and the same tensors."""
    last, state = state_in(broken)
    expected_last, expected = state_in(whole)
    if last != expected_last:
        raise CourseError(f"the newest checkpoint is {last}, expected {expected_last}")
    if not any("momentum" in name for name, _ in state):
        raise CourseError(f"no momentum is among the tensors: {[name for name, _ in state]}")
    assert_all_equal("the end", state, expected, cfg.tolerance)
    print(f"{last}: all {len(state)} tensors of the unbroken run of one process, momentum too")


def main(cfg: Config) -> None:
    if len(sys.argv) > 2 or not all(word.isdecimal() for word in sys.argv[1:]):
        raise InputError("name the number of ranks, and nothing else")
    ranks = int(sys.argv[1]) if len(sys.argv) == 2 else 2
    with tempfile.TemporaryDirectory() as name:
        broken = Path(name) / "broken"
        whole = Path(name) / "whole"
        log = Path(name) / "log"
        torchrun = launch(ranks, broken, log, cfg)
        try:
            unbroken(whole, cfg)
            code = torchrun.wait(cfg.limit_s)
        finally:
            torchrun.kill()  # if it still runs; its ranks die with it
            torchrun.wait()
        text = log.read_text(encoding="utf-8")
        check_chain(text, ranks, cfg)
        if code != 0:
            raise CourseError(f"torchrun ended with exit code {code}, its log with:\n{text[-3000:]}")
        check_end(broken, whole, cfg)


if __name__ == "__main__":
    run(main, Config())
