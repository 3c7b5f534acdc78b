"""Kill the training script of lesson 10 at random moments until it is done; nothing may be lost.

Run it from the checkout:  python tests/scripts/soak.py --kills 30 --seed 1

Each launch has 1 to 3 ranks and at most one restart by torchrun. At random moments, in start-up, in a step
or in a save, it meets with one of these: SIGKILL of a rank, SIGKILL of the launcher, SIGTERM to the launcher,
SIGUSR1 to a rank, a full disk. Checked is:

- each start goes on from the checkpoint that was the newest complete one then, and this never becomes older;
- no process stays;
- the end equals that of one process that nobody disturbed: weights and momentum, in float64.

Over more than a thousand steps training amplifies rounding beyond 1e-12, and ranks round otherwise than one
process. Where that bound does not hold, three ranks that nobody disturbs show what rounding alone does, and
the end must be as near as theirs, within a factor of ten.
"""

import argparse
import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.run import run
from shared.training import launches

TO_A_RANK = {"SIGKILL of a rank": signal.SIGKILL, "SIGUSR1 to a rank": signal.SIGUSR1}
TO_THE_LAUNCHER = {"SIGKILL of the launcher": signal.SIGKILL, "SIGTERM to the launcher": signal.SIGTERM}
FULL_DISK = "full disk"
EVENTS = [*TO_A_RANK, *TO_THE_LAUNCHER, FULL_DISK]
FULL_DISK_BYTES = 100_000  # per file: less than a rank's part of a checkpoint, more than a launch prints
STEPS_PER_EPOCH = 29
EARLY = 0.3  # of all kills come at a moment of start-up
START_UP_S = 6.0
LARGEST_ROUNDING = 1e-8  # a step that is lost, or made twice, changes weights by far more


@dataclass(frozen=True)
class Config(launches.Training):
    """Of one run, as in the launches."""

    timeout_s: int = 30  # of ranks whose launcher was killed before they asked to die with it

    def options(self, checkpoints: Path) -> list[str]:
        return [*super().options(checkpoints), f"--timeout={self.timeout_s}"]


@contextmanager
def full_disk(is_full: bool) -> Iterator[None]:
    """Processes that are started meanwhile can write small files only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if is_full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def wait_for_a_random_moment(watch, launch, event: str, attempts_before: int, draws: random.Random) -> None:
    """Some time in the start-up of the next attempt, or some time after its first step."""
    is_over = lambda: launch.ended is not None  # noqa: E731
    if event == FULL_DISK:
        watch.until(lambda: "was not saved" in launch.errors.read_text() or is_over(), "a failing save")
        end = time.monotonic() + draws.random()
    elif draws.random() < EARLY:
        watch.until(lambda: event in TO_THE_LAUNCHER or launch.running() or is_over(), "ranks to kill")
        end = time.monotonic() + START_UP_S * draws.random()
    else:
        watch.until(lambda: len(launch.attempts()) > attempts_before or is_over(), "the first step")
        end = time.monotonic() + draws.random()
    watch.until(lambda: time.monotonic() > end or is_over(), "a random moment")


def meet(event: str, watch, launch, draws: random.Random) -> bool:
    """Let a launch meet with an event, and wait for what it ends. Returns whether it came in time."""
    ranks = launch.running()
    if launch.ended is not None or (event in TO_A_RANK and not ranks):
        return False
    if event in TO_A_RANK:
        os.kill(draws.choice(ranks).pid, TO_A_RANK[event])
    else:  # a launch on a full disk is asked to leave
        launch.process.send_signal(TO_THE_LAUNCHER.get(event, signal.SIGTERM))
    watch.until(lambda: all(rank.ended for rank in ranks), f"the end of the ranks after {event}")
    return True


def assert_goes_on(launch, starts: list[int]) -> None:
    """``starts``: the newest complete checkpoint at the start, and when the first ranks were gone."""
    firsts = [attempt.first for attempt in launch.attempts()]
    if firsts != starts[: len(firsts)]:
        raise CourseError(
            f"{launch.name} went on from steps {firsts}, the newest complete ones were {starts}"
        )


def one_launch(watch, name: str, ranks: int, restarts: int, events: list[str], draws: random.Random) -> int:
    """Start it, let it meet with the events, wait for its end, check. Returns how many came in time."""
    checkpoints = watch.folder / "run"
    starts = [launches.newest(checkpoints)]
    with full_disk(FULL_DISK in events):
        launch = watch.start(name, launches.torchrun(ranks, restarts), "run")
    met = []
    for event in events:
        wait_for_a_random_moment(watch, launch, event, len(launch.attempts()) if met else 0, draws)
        if meet(event, watch, launch, draws):
            met.append(event)
            starts.append(launches.newest(checkpoints))
    code = watch.exit_code(launch)
    assert_goes_on(launch, starts)
    now = launches.newest(checkpoints)
    told = f"{ranks} ranks, {restarts} restarts, {' then '.join(met) or 'undisturbed'}"
    print(f"{name}: {told}: from steps {starts} to {now}, exit code {code}", flush=True)
    if now < max(starts):
        raise CourseError(f"the newest checkpoint was that of step {max(starts)}, now it is {now}")
    if FULL_DISK in events and (code == 0 or now != starts[0]):
        raise CourseError("the disk was full, but it ended well, or saved")
    if (code == 0) != (now == watch.training.steps) and not met:
        raise CourseError(f"{watch.errors()}\nnothing happened to it, but it did not end well")
    return len(met)


def events_of(left: int, restarts: int, draws: random.Random) -> list[str]:
    """What a launch is to meet with. One that torchrun starts again meets with something else, too."""
    if left == 0:
        return []
    events = [draws.choice(EVENTS)]
    if restarts and events[0] in TO_A_RANK and left > 1:
        events.append(draws.choice([*TO_A_RANK, *TO_THE_LAUNCHER]))
    return events


def is_near(watch, run: str, tolerance: float) -> bool:
    """Whether the end of a run is that of the unbroken one."""
    cfg = replace(watch.training, tolerance=tolerance)
    try:
        launches.assert_same_end(watch.folder / run, watch.folder / "unbroken", cfg)
    except ParityError as error:
        print(error, flush=True)
        return False
    return True


def assert_same_end(watch) -> float:
    """Return the bound within which the end equals that of the unbroken run."""
    bound = watch.training.tolerance
    if is_near(watch, "run", bound):
        return bound
    control = watch.start("control", launches.torchrun(3), "control")
    launches.expect("exit code of the control", watch.exit_code(control), 0)
    while not is_near(watch, "control", bound):
        bound *= 10
        if bound > LARGEST_ROUNDING:
            raise CourseError("three ranks that nobody disturbed end elsewhere than one process")
    if not is_near(watch, "run", 10 * bound):
        raise CourseError(f"the end differs; three undisturbed ranks are near one process within {bound:.0e}")
    return 10 * bound


def survive(kills: int, draws: random.Random, cfg: Config) -> int:
    """One run to its end, with at most ``kills`` events. Returns how many there were."""
    with tempfile.TemporaryDirectory() as folder:
        watch = launches.Watch(Path(folder), cfg)
        try:
            unbroken = watch.start("unbroken", [], "unbroken")
            met = 0
            number = 0
            while launches.newest(watch.folder / "run") < cfg.steps:
                number += 1
                ranks = draws.randint(1, 3)
                restarts = draws.randint(0, 1)
                events = events_of(kills - met, restarts, draws)
                met += one_launch(watch, f"launch {number}", ranks, restarts, events, draws)
            launches.expect("exit code of the unbroken run", watch.exit_code(unbroken), 0)
            bound = assert_same_end(watch)
        finally:
            watch.close()
    print(f"{met} kills, no process is left, the end equals the unbroken run's within {bound:.0e}")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draws = random.Random(options.seed)
    left = options.kills
    while left > 0:
        epochs = 6 + left  # a launch gets some steps further before it is killed
        left -= survive(left, draws, Config(epochs=epochs, steps=epochs * STEPS_PER_EPOCH))
    print(f"survived {options.kills} kills, seed {options.seed}")


if __name__ == "__main__":
    run(main)
