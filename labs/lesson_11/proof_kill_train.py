"""Kill labs/lab_10_train.py at every moment of a save and between saves; compare with an unbroken run.

Run it:      python labs/lesson_11/proof_kill_train.py
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo  # else each fork imports it for its optimizer
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils.data import Subset

from shared.runtime.children import FORK
from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_port
from shared.runtime.run import die_with_launcher, run

import lab_10_train
from lesson_11.proof_kill import Moment, Moments


@dataclass(frozen=True)
class Config:
    images: int = 120  # few, so that a run is short
    batch_size: int = 8  # 15 steps
    save_every: int = 5
    tolerance: float = 1e-12  # largest difference of two runs in float64
    at_once: int = 2  # runs side by side
    limit_s: int = 300  # for one run, so that a hang ends


BEFORE = "step_00000005"  # complete when the save begins that is killed
KILLED = "step_00000010"  # the checkpoint whose save is killed
NONE = "the start"
NEXT = "step_00000015"  # the last one


@dataclass(frozen=True)
class Case:
    """A kill of rank ``victim`` of ``ranks``, then a second run on another number of ranks."""

    moment: Moment
    newest: str  # the checkpoint to resume from
    ranks: int = 1
    victim: int = 0
    ranks_then: int = 1

    @property
    def where(self) -> str:
        change, times = self.moment
        which = f", time {times}" if times > 1 else ""
        whose = f", rank {self.victim} of {self.ranks}" if self.ranks > 1 else ""
        return f"{change}{which}{whose}"


@dataclass(frozen=True)
class Ended:
    """A run of the script: the exit codes of its ranks, and what they printed."""

    codes: list[int]
    said: str


def load_few_images(cfg: Config) -> None:
    """Have the script train on a few digits, which its forks find in memory."""
    data = lab_10_train.digits()
    train = Subset(data.train, range(cfg.images))
    test = Subset(data.test, range(cfg.images // 4))
    few = data._replace(train=train, test=test)
    lab_10_train.digits = lambda: few


# {moment between saves: the newest checkpoint then}
BETWEEN_SAVES = {("train_step", 8): BEFORE, ("train_step", 15): KILLED, ("evaluate", 1): NEXT}


def watch_training(moments: Moments) -> None:
    """Let the process die before a step or an evaluation, too, if that is its moment to die."""
    seen: Counter[str] = Counter()

    def watched(name: str, function: Callable) -> Callable:
        def wrapper(*args, **options) -> object:
            seen[name] += 1
            if moments.kill_at == (name, seen[name]):
                while checkpoints_in(moments.folder) != [BETWEEN_SAVES[moments.kill_at]]:
                    time.sleep(0.01)  # a thread saves it, then removes the one before
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return wrapper

    lab_10_train.Trainer.train_step = watched("train_step", lab_10_train.Trainer.train_step)
    lab_10_train.Trainer.evaluate = watched("evaluate", lab_10_train.Trainer.evaluate)


def be_rank(rank: int, ranks: int, port: int, arguments: list[str], moments: Moments, log: Path) -> NoReturn:
    """In a fork: be this rank of the script, as torchrun starts it, and end with its exit code."""
    code = 1
    try:
        die_with_launcher()
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if ranks > 1:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": HERE}
            os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
        moments.watch()
        watch_training(moments)
        code = lab_10_train.main(arguments)
        log.with_suffix(f".{rank}.json").write_text(json.dumps(moments.seen))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def launch(folder: Path, cfg: Config, ranks: int = 1, keep: int = 1, case: Case | None = None) -> Ended:
    """Run the script on forks of this process. When one dies, end the others, as torchrun does."""
    log = folder.with_suffix(".log")
    log.unlink(missing_ok=True)
    arguments = f"--epochs 1 --batch-size {cfg.batch_size} --augment --float64 --keep {keep}".split()
    arguments += ["--save-every", str(cfg.save_every), "--checkpoints", str(folder)]
    port = free_port() if ranks > 1 else 0
    started = {}
    for rank in range(ranks):
        kill_at = case.moment if case and case.victim == rank else None
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(cfg.limit_s)
            be_rank(rank, ranks, port, arguments, Moments(folder, kill_at), log)
        started[pid] = rank
    codes = {}
    while len(codes) < ranks:
        pid, status = os.wait()
        codes[started[pid]] = os.waitstatus_to_exitcode(status)
        for other, rank in started.items():
            if codes[started[pid]] != 0 and rank not in codes:
                os.kill(other, signal.SIGTERM)
    return Ended([codes[rank] for rank in range(ranks)], log.read_text())


def values_in(file: Path) -> dict[str, object]:
    """{name: tensor or number} of all that a file of torch.save holds, in nested dictionaries."""
    values = {}
    waiting = [("", torch.load(file, weights_only=True))]
    while waiting:
        prefix, content = waiting.pop()
        for name, value in content.items():
            if isinstance(value, dict):
                waiting.append((f"{prefix}{name}.", value))
            else:
                values[f"{prefix}{name}"] = value
    return values


def as_one_file(folder: Path) -> Path:
    """A checkpoint of DCP as a file of torch.save, beside it."""
    file = folder.with_suffix(".pt")
    dcp_to_torch_save(folder, file)
    return file


def difference(folder: Path, expected: Path) -> float:
    """The largest difference between a checkpoint and the file that holds what it should be."""
    file = as_one_file(folder)
    ours = values_in(file)
    theirs = values_in(expected)
    file.unlink()
    if ours.keys() != theirs.keys():
        raise CourseError(f"{folder.name} holds other names than that of the unbroken run")
    tensors = [name for name, value in ours.items() if isinstance(value, torch.Tensor)]
    return max((ours[name] - theirs[name]).abs().max().item() for name in tensors)


def checkpoints_in(folder: Path) -> list[str]:
    """Names of all that lies there, complete or not, but for the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def complete_in(folder: Path) -> list[str]:
    """Names of the checkpoints that the script takes for complete, the oldest first."""
    return sorted(path.name for path in folder.glob("step_*") if not path.suffix)


def kill_and_resume(case: Case, unbroken: Path, cfg: Config) -> float:
    """Kill a run, look at what it leaves, let a second run end it; return how far it is from the unbroken."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "checkpoints"
        killed = launch(folder, cfg, case.ranks, case=case)
        if killed.codes[case.victim] != -signal.SIGKILL:
            raise CourseError(f"{case.where}: should have been killed there: {killed.codes}\n{killed.said}")
        left = complete_in(folder)
        for checkpoint in left:
            try:
                distance = difference(folder / checkpoint, unbroken / f"{checkpoint}.pt")
            except (Exception, dcp.api.CheckpointException) as error:  # the latter is no Exception
                what = type(error).__name__
                raise CourseError(f"{case.where}: {checkpoint} looks complete and is not: {what}") from None
            if distance > cfg.tolerance:
                raise CourseError(f"{case.where}: {checkpoint} holds other values than were saved")
        newest = left[-1] if left else NONE
        if newest != case.newest:
            raise CourseError(f"{case.where}: the newest checkpoint is {newest}, not {case.newest}")
        resumed = launch(folder, cfg, case.ranks_then)
        resumes_from = NONE
        for line in resumed.said.splitlines():
            if line.startswith("resuming from "):
                resumes_from = line.removeprefix("resuming from ")
        if resumed.codes != [0] * case.ranks_then or resumes_from != case.newest:
            raise CourseError(f"{case.where}: resumes from {resumes_from}: {resumed.codes}\n{resumed.said}")
        if checkpoints_in(folder) != [NEXT]:
            raise CourseError(f"{case.where}: is left: {checkpoints_in(folder)}")
        distance = difference(folder / NEXT, unbroken / f"{NEXT}.pt")
        if distance > cfg.tolerance:
            raise CourseError(f"{case.where}: ends {distance:.1e} from the unbroken run")
        return distance


def moments_of_one_save(seen: list[Moment]) -> list[Moment]:
    """All changes of the disk by one save; of the writes into a file the first, the middle and the last.

    An fsync is left out: a kill before it leaves the same as a kill after it.
    """
    begin = seen.index((f"mkdir {KILLED}.part", 1))
    end = seen.index((f"mkdir {NEXT}.part", 1))
    writes = {}
    for change, times in seen[begin:end]:
        if change.startswith("write"):
            writes[change] = times
    chosen = []
    for change, times in seen[begin:end]:
        is_shown = change not in writes or times in (1, (writes[change] + 1) // 2, writes[change])
        if is_shown and not change.startswith("fsync"):
            chosen.append((change, times))
    return in_one_order(chosen)


def in_one_order(moments: list[Moment]) -> list[Moment]:
    """Files of a folder are removed one after the other, in an order that the file system decides."""
    removals = [moment for moment in moments if moment[0].startswith("unlink")]
    first = moments.index(removals[0])
    others = [moment for moment in moments if moment not in removals]
    return [*others[:first], *sorted(removals), *others[first:]]


def cases_of(seen: list[Moment]) -> list[Case]:
    """A kill of one process at every moment; some of one rank of two, which three or one resume."""
    cases = [Case((f"rename {BEFORE}", 1), NONE)]  # the first save of all
    newest = BEFORE
    for moment in moments_of_one_save(seen):
        cases.append(Case(moment, newest))
        if moment == (f"rename {KILLED}", 1):  # from here on the new one counts
            newest = KILLED
    cases += [Case(moment, newest) for moment, newest in BETWEEN_SAVES.items()]
    for moment, newest in BETWEEN_SAVES.items():
        cases.append(Case(moment, newest, ranks=2, victim=1))
    of_rank_1 = f"{KILLED}.part/__1_0.distcp"
    cases.append(Case((f"open {of_rank_1}", 1), BEFORE, ranks=2, victim=1, ranks_then=3))
    cases.append(Case((f"write {of_rank_1}", 50), BEFORE, ranks=2, victim=1, ranks_then=1))
    cases.append(Case((f"rename {BEFORE}.part", 1), KILLED, ranks=2, victim=0, ranks_then=3))
    return cases


def check_that_nothing_escapes(seen: list[Moment], folder: Path) -> None:
    """Each file of the last checkpoint was seen when it was opened, or when it got its name."""
    for path in (folder / NEXT).iterdir():
        names = [(f"{what} {NEXT}.part/{path.name}", 1) for what in ("open", "rename")]
        if not set(names) & set(seen):
            raise CourseError(f"{path.name} came about unseen")


def check_that_all_is_flushed(seen: list[Moment]) -> None:
    """Bytes and names of a checkpoint are on the disk before its final name counts: power may fail."""
    changes = [change for change, _ in seen]
    renamed = changes.index(f"rename {NEXT}")
    written = [change.removeprefix("open ") for change in changes if change.startswith(f"open {NEXT}.part/")]
    for name in [*written, f"{NEXT}.part"]:
        if f"fsync {name}" not in changes[:renamed]:
            raise CourseError(f"{name} is renamed before it is flushed")
    if "fsync ." not in changes[renamed:]:
        raise CourseError("the final name is not flushed")


def main(cfg: Config) -> None:
    torch.set_num_threads(1)
    load_few_images(cfg)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name).resolve()
        unbroken = here / "unbroken"
        ended = launch(unbroken, cfg, keep=3)
        if ended.codes != [0] or complete_in(unbroken) != [BEFORE, KILLED, NEXT]:
            raise CourseError(f"the unbroken run: {ended.codes}, {complete_in(unbroken)}\n{ended.said}")
        for checkpoint in complete_in(unbroken):
            as_one_file(unbroken / checkpoint)
        launch(here / "watched", cfg)
        seen = [tuple(moment) for moment in json.loads((here / "watched.0.json").read_text())]
        check_that_nothing_escapes(seen, here / "watched")
        check_that_all_is_flushed(seen)
        cases = cases_of(seen)
        done = []
        with FORK.Pool(cfg.at_once, initializer=die_with_launcher) as pool:
            distances = pool.imap(partial(kill_and_resume, unbroken=unbroken, cfg=cfg), cases)
            for case, _ in zip(cases, distances, strict=True):
                done.append(case)
        for (newest, ranks), group in groupby(done, key=lambda case: (case.newest, case.ranks)):
            told = list(group)
            what = told[0].where if len(told) == 1 else f"{told[0].where} to {told[-1].where}"
            points = "1 point" if len(told) == 1 else f"{len(told)} points"
            size = "1 rank" if ranks == 1 else f"{ranks} ranks"
            print(f"{size}, killed at {points}, {what}: resumes from {newest}")
        print("each file of a checkpoint is flushed before it gets its final name")
        print(f"{len(cases)} kills: each second run ends within {cfg.tolerance:.0e} of the unbroken run")


if __name__ == "__main__":
    run(main, Config())
