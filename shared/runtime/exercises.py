"""How an exercise is checked: every rank gives a verdict, rank 0 announces them all. Taught in lesson 00."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch.distributed as dist

from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import Group, process_group, read_environment
from shared.runtime.loading import load_file
from shared.runtime.run import run

EXERCISES = Path(__file__).resolve().parents[2] / "labs" / "exercises"
TIMEOUT_S = 10.0


class Wrong(CourseError):
    """What is wrong with an answer, in one sentence that helps."""


def check_exercise(
    name: str, verify: Callable[[ModuleType, Group], str], *, timeout_s: float | None = None
) -> None:
    """Check ``labs/exercises/NAME/exercise.py``, or the file given by ``--answer``, on all ranks.

    Args:
        name: the exercise, such as ``05_reduce_scatter``.
        verify: gets the answer as a module and the group. Returns one line of praise with numbers;
            raises ``Wrong`` or fails an assertion when the answer is wrong. Collectives inside are fine.
        timeout_s: seconds that a rank waits in a collective; ``TIMEOUT_S`` by default.

    A stub that raises ``NotImplementedError`` counts as not started: exit code 0. A wrong answer ends
    with exit code 1 and one line per rank that found a fault.
    """
    parser = argparse.ArgumentParser(description=f"Check exercise {name}.")
    parser.add_argument(
        "--answer", type=Path, default=EXERCISES / name / "exercise.py", help="the file to check"
    )
    limit_s = TIMEOUT_S if timeout_s is None else timeout_s
    run(_examine, name, parser.parse_args().answer, verify, limit_s)


def _examine(name: str, path: Path, verify: Callable[[ModuleType, Group], str], timeout_s: float) -> None:
    rank, _, world_size = read_environment()
    store = _store_of_verdicts(name, timeout_s)

    def meet(where: str) -> None:
        store.set(f"{where} {rank}", "yes")
        store.wait([f"{where} {r}" for r in range(world_size)])

    meet("here")  # ranks start apart; what follows is less patient
    answer = _load(name, path)
    store.set(str(rank), _verdict(answer, verify, timeout_s))
    verdicts = [store.get(str(r)).decode() for r in range(world_size)]
    if rank == 0:
        _announce(name.replace("_", " "), verdicts)
    meet("heard")  # the first to exit ends all others
    if _kinds(verdicts) not in ({"right"}, {"not started"}):
        sys.exit(1)


def _store_of_verdicts(name: str, timeout_s: float) -> dist.Store:
    """Where verdicts travel: after a failed collective the group itself is unusable."""
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=4 * timeout_s),
    )
    return dist.PrefixStore(f"verdicts of exercise {name}", store)


def _load(name: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"exercise {name}: there is no file {path.name}; run the cell that writes it")
    try:
        return load_file(path, f"exercise_{name}")
    except Exception as error:
        raise InputError(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from None


def _verdict(answer: ModuleType, verify: Callable[[ModuleType, Group], str], timeout_s: float) -> str:
    """``right: ...``, ``wrong: ...``, ``stuck: ...`` or ``not started``."""
    praise = None
    try:
        with process_group(timeout_s=timeout_s, report=False) as group:
            praise = verify(answer, group)
        return f"right: {praise}"
    except Exception as error:
        if praise is None:
            verdict = _complaint(error, timeout_s)
        else:
            verdict = f"right: {praise}"  # only the farewell failed: another rank was wrong and left
    if dist.is_initialized():
        with contextlib.suppress(Exception):  # closes the connections, so that nobody waits for this rank
            dist.destroy_process_group()
    return verdict


def _complaint(error: Exception, timeout_s: float) -> str:
    """The verdict on an answer that raised ``error``."""
    if isinstance(error, NotImplementedError):
        return "not started"
    if isinstance(error, Wrong):
        return f"wrong: {error}"
    text = str(error).strip()
    first_line = text.splitlines()[0] if text else ""
    if "Timed out" in first_line:
        return f"stuck: it waited {timeout_s:.0f} s for a message that did not come"
    if "onnection" in first_line:
        return "stuck: a rank left while this one waited for it"
    return f"wrong: {type(error).__name__}: {first_line}"


def _kinds(verdicts: list[str]) -> set[str]:
    return {verdict.partition(":")[0] for verdict in verdicts}


def _announce(title: str, verdicts: list[str]) -> None:
    kinds = _kinds(verdicts)
    if kinds == {"not started"}:
        print(f"Exercise {title}: not started")
    elif kinds == {"right"}:
        print(f"Exercise {title}: {verdicts[0]}")
    else:
        worst = next(kind for kind in ("wrong", "stuck", "not started") if kind in kinds)
        for rank, verdict in enumerate(verdicts):
            if verdict.startswith(worst):
                print(f"[rank {rank}] Exercise {title}: {verdict}")
