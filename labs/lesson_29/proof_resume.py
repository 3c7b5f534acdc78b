"""Kill lab_29_language.py at many moments, resume it on other ranks, and compare with an unbroken run.

Run it:      python labs/lesson_29/proof_resume.py
"""

import argparse
import faulthandler
import io
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo  # else each fork imports it for its optimizer
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_port
from shared.runtime.run import die_with_launcher, run

import lab_29_language as script
from lab_11_checkpointing import DAMAGED


@dataclass(frozen=True)
class Config:
    kills: int = 12
    steps: int = 12
    save_every: int = 4
    tolerance: float = 1e-12  # largest difference of two runs in float64
    limit_s: int = 300  # for one run, so that a hang ends
    patience_s: float = 5.0  # for the ranks that are left when one is killed
    options: str = (
        "--length 48 --layers 2 --width 32 --ffn 48 --batch-size 12 --warm-up 2 --precision float64 "
        "--keep 2 --eval-every 12"
    )


COMPLETE = re.compile(r"step_\d{8}")
RESUMED = re.compile(r" from (step_\d{8})$", re.MULTILINE)
CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


@dataclass(frozen=True)
class Moment:
    """Before this step, or before the ``number``-th change of the disk by this rank, it gets the signal."""

    rank: int
    kind: str  # "step" or "change"
    number: int
    signal: int = signal.SIGKILL


@dataclass(frozen=True)
class Ended:
    """A run of the script: the exit codes of its ranks, what they printed, changes of the disk by each."""

    codes: list[int]
    said: str
    changes: list[int]

    @property
    def resumed_from(self) -> str:
        """The name of a checkpoint, or nothing."""
        return (RESUMED.findall(self.said) or [""])[-1]


class Watch:
    """Counts the steps of this process and its changes of the disk, and signals it at one of them."""

    def __init__(self, moment: Moment | None) -> None:
        self.moment = moment
        self.counts = {"step": 0, "change": 0}

    def begin(self) -> None:
        script.Trainer.train_step = self.watched("step", script.Trainer.train_step)
        for name in CHANGES:
            setattr(os, name, self.watched("change", getattr(os, name)))
        real_open = io.open

        def watched_open(file: object, mode: str = "r", *args: object, **options: object) -> io.IOBase:
            if "w" in mode:
                self.note("change")
            return real_open(file, mode, *args, **options)

        io.open = watched_open  # ``Path.open`` calls that

    def note(self, kind: str) -> None:
        self.counts[kind] += 1
        if self.moment and (kind, self.counts[kind]) == (self.moment.kind, self.moment.number):
            os.kill(os.getpid(), self.moment.signal)

    def watched(self, kind: str, function: Callable) -> Callable:
        def wrapper(*args: object, **options: object) -> object:
            self.note(kind)
            return function(*args, **options)

        return wrapper


def be_rank(
    rank: int, ranks: int, port: int, arguments: list[str], moment: Moment | None, log: Path
) -> NoReturn:
    """In a fork: be this rank of the script, as torchrun starts it, and end with its exit code."""
    code = 1
    try:
        die_with_launcher()
        # A fork makes torch's thread pool anew. Two threads that do so at once abort: "Invalid thread pool!"
        torch.set_num_threads(1)
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        faulthandler.enable()  # else an abort says nothing
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": HERE}
        os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
        watch = Watch(moment)
        watch.begin()
        code = script.main(arguments)
        log.with_suffix(f".{rank}").write_text(str(watch.counts["change"]))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def launch(folder: Path, cfg: Config, ranks: int, *more: str, moment: Moment | None = None) -> Ended:
    """Run the script on forks of this process. When one dies, end the others, as torchrun does."""
    log = folder.with_suffix(".log")
    log.unlink(missing_ok=True)
    arguments = [*cfg.options.split(), "--steps", str(cfg.steps), "--save-every", str(cfg.save_every)]
    arguments += ["--checkpoints", str(folder), *more]
    port = free_port()
    started = {}
    for rank in range(ranks):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(cfg.limit_s)
            be_rank(rank, ranks, port, arguments, moment if moment and moment.rank == rank else None, log)
        started[pid] = rank
    codes = {}
    while len(codes) < ranks:
        pid, status = os.wait()
        codes[started[pid]] = os.waitstatus_to_exitcode(status)
        if codes[started[pid]] not in (0, script.SAVED_AND_LEFT):
            end_all([pid for pid, rank in started.items() if rank not in codes], cfg)
    counts = [log.with_suffix(f".{rank}") for rank in range(ranks)]
    changes = [int(file.read_text()) if file.exists() else 0 for file in counts]
    return Ended([codes[rank] for rank in range(ranks)], log.read_text(), changes)


def end_all(pids: list[int], cfg: Config) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + cfg.patience_s
    while time.monotonic() < end:
        if all(is_over(pid) for pid in pids):
            return
        time.sleep(0.05)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def is_over(pid: int) -> bool:
    """Whether a child has ended; its status is left for ``os.wait``."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def complete_in(folder: Path) -> list[str]:
    """Names of the checkpoints, the newest last."""
    return sorted(path.name for path in folder.glob("step_*") if COMPLETE.fullmatch(path.name))


def values_in(checkpoint: Path) -> dict[str, torch.Tensor]:
    """{name: tensor} of the model and the optimizer, whole."""
    file = checkpoint.with_suffix(".pt")
    dcp_to_torch_save(checkpoint, file)
    saved = torch.load(file, weights_only=True)
    file.unlink()
    values = dict(saved["model"])
    for name, state in saved["optimizer"]["state"].items():
        values |= {f"{name}.{kind}": value for kind, value in state.items()}
    return values


def difference(checkpoint: Path, expected: dict[str, torch.Tensor]) -> float:
    found = values_in(checkpoint)
    if found.keys() != expected.keys():
        raise CourseError(f"{checkpoint.name} holds other names than that of the unbroken run")
    return max((found[name] - expected[name]).abs().max().item() for name in expected)


def finish(what: str, folder: Path, expected: dict, cfg: Config, ranks: int, *more: str) -> Ended:
    """Run the script again, to the end: it resumes from the newest checkpoint and ends like the unbroken."""
    newest = (complete_in(folder) or [""])[-1]
    ended = launch(folder, cfg, ranks, *more)
    if ended.codes != [0] * ranks or ended.resumed_from != newest:
        raise CourseError(
            f"{what}: resumes from {ended.resumed_from or 'nothing'}: {ended.codes}\n{ended.said}"
        )
    check_end(what, folder, expected, cfg)
    return ended


def check_end(what: str, folder: Path, expected: dict, cfg: Config) -> None:
    last = folder / f"step_{cfg.steps:08d}"
    distance = difference(last, expected)
    if distance > cfg.tolerance:
        raise CourseError(f"{what}: ends {distance:.1e} from the unbroken run")


def interrupt(what: str, folder: Path, cfg: Config, ranks: int, moment: Moment, *more: str) -> int:
    """Let a run end at a moment; return the steps that are lost, where the moment is a step."""
    ended = launch(folder, cfg, ranks, *more, moment=moment)
    expected = -signal.SIGKILL if moment.signal == signal.SIGKILL else script.SAVED_AND_LEFT
    if ended.codes[moment.rank] != expected:
        raise CourseError(f"{what}: should have ended with {expected}: {ended.codes}\n{ended.said}")
    begun = int(ended.resumed_from[5:] or 0)
    newest = int((complete_in(folder) or ["step_0"])[-1][5:])
    return begun + moment.number - 1 - newest if moment.kind == "step" else 0


def kills(here: Path, expected: dict, cfg: Config) -> None:
    """Kills of one rank at moments that are drawn; each second run has another number of ranks."""
    watched = {ranks: launch(here / f"watched_{ranks}", cfg, ranks).changes for ranks in (1, 2)}
    draw = random.Random(29)
    lost = []
    for number in range(cfg.kills):
        ranks = 1 + number % 2
        rank = draw.randrange(ranks)
        kind = ("change", "change", "step")[number % 3]
        most = watched[ranks][rank] if kind == "change" else cfg.steps
        moment = Moment(rank, kind, draw.randint(2, most - 2))
        what = f"kill {number}, rank {rank} of {ranks}, {kind} {moment.number}"
        folder = here / f"killed_{number}"
        lost.append(interrupt(what, folder, cfg, ranks, moment))
        finish(what, folder, expected, cfg, (2, 3, 1)[number % 3])
        shutil.rmtree(folder)
    if max(lost, default=0) >= 2 * cfg.save_every:
        raise CourseError(
            f"a kill has cost {max(lost)} steps, a checkpoint is written every {cfg.save_every}"
        )
    print(f"{cfg.kills} kills: each second run ends within {cfg.tolerance:.0e} of the unbroken one")


def other_sizes(here: Path, expected: dict, cfg: Config) -> None:
    folder = here / "sizes"
    interrupt("4 ranks", folder, cfg, 4, Moment(3, "step", 6))
    interrupt("2 ranks", folder, cfg, 2, Moment(1, "step", 5))
    finish("4, 2, 3 ranks", folder, expected, cfg, 3)
    print("killed on 4 ranks, then on 2, ended on 3: equal")
    folder = here / "hsdp"
    interrupt("HSDP", folder, cfg, 4, Moment(0, "step", 6), "--replicate", "2")
    finish("HSDP", folder, expected, cfg, 2)
    folder = here / "to_hsdp"
    interrupt("2 ranks", folder, cfg, 2, Moment(0, "step", 6))
    finish("to HSDP", folder, expected, cfg, 4, "--replicate", "2")
    print("from HSDP of 2 x 2 ranks to FSDP of 2, and back: equal")


def asked_to_stop(here: Path, expected: dict, cfg: Config) -> None:
    folder = here / "asked"
    lost = interrupt("SIGTERM", folder, cfg, 2, Moment(1, "step", 6, signal.SIGTERM))
    finish("SIGTERM", folder, expected, cfg, 2)
    if lost > 0:
        raise CourseError(f"SIGTERM has cost {lost} steps")
    print("SIGTERM to one of 2 ranks: both save and leave with 75, no step is lost")


def damage(unbroken: Path, expected: dict, cfg: Config) -> None:
    """A flipped byte is found, its file is named, and the checkpoint before is taken."""
    before, last = complete_in(unbroken)
    file = max((unbroken / last).glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    ended = launch(unbroken, cfg, 2)
    if f"{last}: {file.name} {DAMAGED}" not in ended.said or ended.resumed_from != before:
        raise CourseError(f"a flipped byte in {file.name}: {ended.codes}\n{ended.said}")
    check_end("a flipped byte", unbroken, expected, cfg)
    print(f"a flipped byte: {last} is not used, its file is named; {before} is, and the end is equal")


def main(cfg: Config) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name).resolve()
        unbroken = here / "unbroken"
        ended = launch(unbroken, cfg, 1)
        if ended.codes != [0] or len(complete_in(unbroken)) != 2:
            raise CourseError(f"the unbroken run: {ended.codes}, {complete_in(unbroken)}\n{ended.said}")
        expected = values_in(unbroken / f"step_{cfg.steps:08d}")
        damage(unbroken, expected, cfg)
        asked_to_stop(here, expected, cfg)
        other_sizes(here, expected, cfg)
        kills(here, expected, cfg)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=Config.kills)
    run(main, Config(parser.parse_args().kills))
