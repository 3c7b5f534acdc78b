"""Kill labs/lab_10_train.py at each step of a save and between saves; compare with an unbroken run.

Run it:      python labs/lesson_11/proof_kill_train.py
"""

import signal
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import Subset

from shared.runtime.children import FORK
from shared.runtime.errors import CourseError
from shared.runtime.run import die_with_launcher, run

import lab_10_train
from lesson_11.kills import Kill, Moment, all_in, complete_in, difference, launch, values_in


@dataclass(frozen=True)
class Config:
    images: int = 120  # few, so that a run is short
    tolerance: float = 1e-12  # largest difference of two runs in float64
    at_once: int = 2  # runs side by side
    options: str = "--epochs 1 --batch-size 8 --augment --float64 --save-every 5"  # 15 steps


BEFORE = "step_00000005"  # complete when the save begins that is killed
KILLED = "step_00000010"  # the checkpoint whose save is killed
NEXT = "step_00000015"  # the last one


@dataclass(frozen=True)
class Case:
    """A kill of a rank, then a second run on another number of ranks."""

    kill: Kill
    phase: str
    newest: str  # the checkpoint to resume from; or nothing
    ranks: int = 1
    ranks_then: int = 1

    @property
    def where(self) -> str:
        change, times = self.kill.moment
        return f"{change}, time {times}, rank {self.kill.rank} of {self.ranks}"


# {moment between saves: the phase, the newest checkpoint then}
BETWEEN_SAVES = {
    ("train_step", 8): ("before step 8", BEFORE),
    ("train_step", 15): ("before step 15", KILLED),
    ("evaluate", 1): ("before the evaluation at the end", NEXT),
}
FIRST = f"before {BEFORE} has its name"
UNNAMED = f"before {KILLED} has its name"
NAMED = f"from then on, until {BEFORE} is removed"


def load_few_images(cfg: Config) -> None:
    """Have the script train on a few digits, which its forks find in memory."""
    data = lab_10_train.digits(augment=True)
    train = Subset(data.train, range(cfg.images))
    test = Subset(data.test, range(cfg.images // 4))
    few = data._replace(train=train, test=test)
    lab_10_train.digits = lambda augment: few


def kill_and_resume(case: Case, unbroken: dict[str, dict], cfg: Config) -> None:
    """Kill a run, look at what it leaves, let a second run end it, and compare it with the unbroken one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "checkpoints"
        options = f"{cfg.options} --keep 1"
        killed = launch(lab_10_train, options, folder, case.ranks, case.kill)
        if killed.codes[case.kill.rank] != -signal.SIGKILL:
            raise CourseError(f"{case.where}: should have been killed there: {killed.codes}\n{killed.said}")
        left = complete_in(folder)
        for checkpoint in left:
            try:
                distance = difference(folder / checkpoint, unbroken[checkpoint])
            except (Exception, dcp.api.CheckpointException) as error:  # the latter is no Exception
                what = type(error).__name__
                raise CourseError(f"{case.where}: {checkpoint} looks complete and is not: {what}") from None
            if distance > cfg.tolerance:
                raise CourseError(f"{case.where}: {checkpoint} holds other values than were saved")
        newest = left[-1] if left else ""
        if newest != case.newest:
            raise CourseError(f"{case.where}: the newest checkpoint is {newest}, not {case.newest}")
        resumed = launch(lab_10_train, options, folder, case.ranks_then)
        if resumed.codes != [0] * case.ranks_then or resumed.resumed_from != case.newest:
            told = f"resumes from {resumed.resumed_from}: {resumed.codes}\n{resumed.said}"
            raise CourseError(f"{case.where}: {told}")
        if all_in(folder) != [NEXT]:
            raise CourseError(f"{case.where}: is left: {all_in(folder)}")
        distance = difference(folder / NEXT, unbroken[NEXT])
        if distance > cfg.tolerance:
            raise CourseError(f"{case.where}: ends {distance:.1e} from the unbroken run")


def moments_of_one_save(seen: list[Moment]) -> list[Moment]:
    """All changes of the disk by one save; of the writes into a file the first, the middle and the last.

    An fsync is left out: a kill before it leaves the same as a kill after it.
    """
    begin = seen.index((f"mkdir {KILLED}.part", 1))
    end = seen.index((f"mkdir {NEXT}.part", 1))
    of_save = [moment for moment in seen[begin:end] if moment[0] not in ("train_step", "evaluate")]
    writes = {change: times for change, times in of_save if change.startswith("write")}
    chosen = []
    for change, times in of_save:
        is_shown = change not in writes or times in (1, (writes[change] + 1) // 2, writes[change])
        if is_shown and not change.startswith("fsync"):
            chosen.append((change, times))
    return chosen


def cases_of(seen: list[Moment]) -> list[Case]:
    """A kill of one process at every moment; some of one rank of two, which three or one resume."""
    cases = [Case(Kill((f"rename {BEFORE}", 1)), FIRST, "")]
    phase, newest = UNNAMED, BEFORE
    for moment in moments_of_one_save(seen):
        cases.append(Case(Kill(moment), phase, newest))
        if moment == (f"rename {KILLED}", 1):  # from here on the new one counts
            phase, newest = NAMED, KILLED
    of_rank_1 = f"{KILLED}.part/__1_0.distcp"
    cases += [
        Case(Kill((f"open {of_rank_1}", 1), rank=1), UNNAMED, BEFORE, ranks=2, ranks_then=3),
        Case(Kill((f"write {of_rank_1}", 50), rank=1), UNNAMED, BEFORE, ranks=2, ranks_then=1),
        Case(Kill((f"rename {BEFORE}.part", 1)), NAMED, KILLED, ranks=2, ranks_then=3),
    ]
    for moment, (phase, newest) in BETWEEN_SAVES.items():
        cases.append(Case(Kill(moment, settled=newest), phase, newest))
        cases.append(Case(Kill(moment, rank=1, settled=newest), phase, newest, ranks=2))
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
        ended = launch(lab_10_train, f"{cfg.options} --keep 3", here / "unbroken")
        found = complete_in(here / "unbroken")
        if ended.codes != [0] or found != [BEFORE, KILLED, NEXT]:
            raise CourseError(f"the unbroken run: {ended.codes}, {found}\n{ended.said}")
        unbroken = {checkpoint: values_in(here / "unbroken" / checkpoint) for checkpoint in found}
        [seen] = launch(lab_10_train, f"{cfg.options} --keep 1", here / "watched").seen
        check_that_nothing_escapes(seen, here / "watched")
        check_that_all_is_flushed(seen)
    cases = cases_of(seen)
    with FORK.Pool(cfg.at_once, initializer=die_with_launcher) as pool:
        pool.map(partial(kill_and_resume, unbroken=unbroken, cfg=cfg), cases, chunksize=1)
    counts = Counter((case.phase, case.ranks) for case in cases)
    resumes_from = {case.phase: case.newest or "the start" for case in cases}
    print(f"{'killed':45} on 1 rank  on 2  resumes from")
    for phase, checkpoint in resumes_from.items():
        print(f"{phase:45} {counts[phase, 1]:9}  {counts[phase, 2]:4}  {checkpoint}")
    print("each file of a checkpoint is flushed before it gets its final name")
    print(f"{len(cases)} kills: each second run ends within {cfg.tolerance:.0e} of the unbroken run")


if __name__ == "__main__":
    run(main, Config())
