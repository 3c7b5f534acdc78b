"""How an exercise is checked: every rank gives a verdict, rank 0 announces them all. Taught in lesson 00."""

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch.distributed as dist

from shared.runtime import last_words
from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import Group, process_group, read_environment
from shared.runtime.loading import load_file
from shared.runtime.replay import show_failing_case
from shared.runtime.run import run
from shared.runtime.supervised import Ended, supervised

LABS = Path(__file__).resolve().parents[2] / "labs"
TIMEOUT_S = 10.0
ALONE = 2  # times the timeout: what a rank may still need when another one has its verdict
LONGEST = 30  # times the timeout: what a check may take
DIED = "died"
UNREADABLE = "unreadable"
DIFFER = "wrong: ranks differ in a collective: "
COLLECTIVE = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(.*?OpType=(\w+)"
    r"(?:, TensorShape=(\[.*?\]), TensorDtypes=(\w+))?"
)
Verify = Callable[[ModuleType, Group], str]


class Wrong(CourseError):
    """What is wrong with an answer, in one sentence that helps."""


def check_exercise(name: str, verify: Verify, *, ranks: int, timeout_s: float | None = None) -> None:
    """Check ``labs/lesson_NN/exercise.py``, or the file given by ``--answer``, on all ranks.

    Args:
        name: the exercise, such as ``05_reduce_scatter``.
        verify: gets the answer as a module and the group. Returns one line of praise with numbers;
            raises ``Wrong`` or fails an assertion when the answer is wrong. Collectives inside are fine.
        ranks: at least so many have to judge. With fewer, some wrong answers look right: there is no praise.
        timeout_s: seconds that a rank waits in a collective; ``TIMEOUT_S`` by default.

    A stub that raises ``NotImplementedError`` counts as not started: exit code 0. A wrong answer ends
    with exit code 1 and one line per rank that found a fault. An answer that aborts or never ends is wrong
    like any other: each rank works in a fork, and the process that torchrun knows tells how that ended.
    After an abort all ranks work once more, under TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares their calls.
    """
    parser = argparse.ArgumentParser(description=f"Check exercise {name}.")
    parser.add_argument(
        "--answer", type=Path, default=LABS / f"lesson_{name[:2]}" / "exercise.py", help="the file to check"
    )
    parser.add_argument("--replay", action="store_true", help="show the case that fails, line by line")
    options = parser.parse_args()
    if options.replay:
        run(_replay, name, options.answer.resolve(), ranks)
    limit_s = TIMEOUT_S if timeout_s is None else timeout_s
    run(_examine, name, options.answer, verify, ranks, limit_s)


def _replay(name: str, path: Path, ranks: int) -> None:
    if "RANK" in os.environ:
        raise InputError(f"--replay starts the ranks itself, without torchrun: {_replay_command(path)}")
    _must_exist(name, path)
    if not _has_communication(path):
        raise InputError(f"exercise {name}: its ranks do not communicate, so there is nothing to replay")
    sys.exit(show_failing_case(sys.argv[0], path, ranks))


def _must_exist(name: str, path: Path) -> None:
    if not path.is_file():
        raise InputError(f"exercise {name}: there is no file {path.name}; run the cell that writes it")


def _has_communication(path: Path) -> bool:
    return "torch.distributed" in path.read_text(encoding="utf-8")


def _replay_command(path: Path) -> str:
    check = Path(sys.argv[0])
    answer = "" if path == check.resolve().with_name("exercise.py") else f" --answer {path}"
    return f"python {check}{answer} --replay"


def _examine(name: str, path: Path, verify: Verify, ranks: int, timeout_s: float) -> None:
    rank, _, world_size = read_environment()
    _must_exist(name, path)
    trial = Trial(name, path.resolve(), verify, timeout_s, _store_of_verdicts(name, timeout_s))
    trial.meet("here")  # ranks start apart; what follows is less patient
    verdicts = trial.verdicts()
    if DIED in _kinds(verdicts):
        verdicts = _explained(verdicts, trial.verdicts_with_detail())
    if rank == 0:
        _announce(name.replace("_", " "), verdicts, ranks, path.resolve())
    trial.meet("heard")  # the first to exit ends all others
    if _kinds(verdicts) not in ({"right"}, {"not started"}):
        sys.exit(1)


def _store_of_verdicts(name: str, timeout_s: float) -> dist.Store:
    """Where verdicts travel: after a failed collective the group itself is unusable."""
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=2 * LONGEST * timeout_s),
    )
    return dist.PrefixStore(f"verdicts of exercise {name}", store)


@dataclass(frozen=True)
class Trial:
    """An answer, and the store through which the ranks tell each other what became of it."""

    name: str
    path: Path
    verify: Verify
    timeout_s: float
    store: dist.Store

    def verdicts_with_detail(self) -> list[str]:
        """The same under TORCH_DISTRIBUTED_DEBUG=DETAIL, in a new store: the old one holds a group's keys."""
        rank, _, _ = read_environment()
        if rank == 0:
            server = dist.TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False)
            self.store.set("port", str(server.port))
        verdicts = self.verdicts(int(self.store.get("port")))
        self.meet("the server may go")
        return verdicts

    def meet(self, where: str) -> None:
        rank, _, world_size = read_environment()
        self.store.set(f"{where} {rank}", "yes")
        self.store.wait([f"{where} {r}" for r in range(world_size)])

    def verdicts(self, port: int | None = None) -> list[str]:
        """Examine the answer in forks; return the verdicts of all ranks, in rank order."""
        rank, _, world_size = read_environment()
        keys = [f"verdict {port} {r}" for r in range(world_size)]
        ended = supervised(lambda: self._judge(port), self._patience(keys))
        verdict = ended.result or self._obituary(ended)
        self.store.set(keys[rank], verdict)
        self.store.wait(keys)
        text = verdict.partition(": ")[2]
        if verdict.startswith(UNREADABLE):
            raise InputError(text)
        return [self.store.get(key).decode() for key in keys]

    def _patience(self, keys: list[str]) -> Callable[[], bool]:
        """A function that says when this rank has worked for too long."""
        begin = time.monotonic()
        others_ended_at = float("inf")

        def is_over() -> bool:
            nonlocal others_ended_at
            now = time.monotonic()
            if any(self.store.check([key]) for key in keys):
                others_ended_at = min(others_ended_at, now)
            return now > min(others_ended_at + ALONE * self.timeout_s, begin + LONGEST * self.timeout_s)

        return is_over

    def _judge(self, port: int | None) -> str:
        """What the fork does; with a ``port`` its group meets there, and compares the calls of its ranks."""
        if port:
            os.environ["MASTER_PORT"] = str(port)
            dist.set_debug_level(dist.DebugLevel.DETAIL)
        try:
            answer = load_file(self.path, f"exercise_{self.name}")
        except Exception as error:
            return f"{UNREADABLE}: {self.path.name} cannot be imported: {type(error).__name__}: {error}"
        return _verdict(answer, self.path, self.verify, self.timeout_s)

    def _obituary(self, ended: Ended) -> str:
        """The verdict on a fork that gave none."""
        place = ended.place_in(self.path)
        at = f" ({place})" if place else ""
        if ended.given_up:
            return f"stuck: it did not end{at}"
        if ended.code < 0:
            return f"{DIED}: {signal.Signals(-ended.code).name} ended the process{at}"
        return f"wrong: the answer ended the process with exit code {ended.code}"


def _explained(verdicts: list[str], with_detail: list[str]) -> list[str]:
    """The verdicts of a first trial in which a rank died, with what the second trial says about it."""
    calls = next((verdict for verdict in with_detail if verdict.startswith(DIFFER)), None)
    explained = []
    for verdict in verdicts:
        kind, _, text = verdict.partition(": ")
        if kind == DIED and calls:
            explained.append(calls)
        elif kind == DIED:
            hint = "; do all ranks hand in the same sizes and types?" if "SIGABRT" in text else ""
            explained.append(f"wrong: {text}{hint}")
        else:
            explained.append(verdict)
    return explained


def _verdict(answer: ModuleType, path: Path, verify: Verify, timeout_s: float) -> str:
    """``right: ...``, ``wrong: ...``, ``stuck: ...`` or ``not started``."""
    praise = None
    try:
        with process_group(timeout_s=timeout_s, report=False) as group:
            praise = verify(answer, group)
        return f"right: {praise}"
    except Exception as error:
        if praise is None:
            verdict = _complaint(error, path, timeout_s)
        else:
            verdict = f"right: {praise}"  # only the farewell failed: another rank was wrong and left
    if dist.is_initialized():
        with contextlib.suppress(Exception):  # closes the connections, so that nobody waits for this rank
            dist.destroy_process_group()
    return verdict


def _complaint(error: Exception, path: Path, timeout_s: float) -> str:
    """The verdict on an answer that raised ``error``."""
    if isinstance(error, NotImplementedError):
        return "not started"
    if isinstance(error, Wrong):
        return f"wrong: {error}"
    text = str(error).strip()
    first_line = text.splitlines()[0] if text else ""
    at = _place(error, path)
    collectives = COLLECTIVE.findall(text)
    if collectives:
        calls = [f"rank {rank} calls {' '.join(call).strip()}" for rank, *call in sorted(collectives)]
        return f"{DIFFER}{', '.join(calls)}{at}"
    if "Timed out" in first_line:
        return f"stuck: it waited {timeout_s:.0f} s for a message that did not come{at}"
    if "onnect" in first_line:
        return f"stuck: a rank left while this one waited for it{at}"
    return f"wrong: {type(error).__name__}: {first_line}{at}"


def _place(error: Exception, path: Path) -> str:
    """Where in the answer, else in its check, it happened: `` (exercise.py, line 7: x = y.grad + 1)``."""
    frames = traceback.extract_tb(error.__traceback__)
    for file in (path, Path(sys.argv[0]).resolve()):
        for frame in reversed(frames):
            if Path(frame.filename).resolve() == file:
                return f" ({file.name}, line {frame.lineno}: {frame.line})"
    return ""


def _kinds(verdicts: list[str]) -> set[str]:
    return {verdict.partition(":")[0] for verdict in verdicts}


def _announce(title: str, verdicts: list[str], ranks: int, path: Path) -> None:
    kinds = _kinds(verdicts)
    if kinds == {"not started"}:
        print(f"Exercise {title}: not started")
    elif kinds == {"right"} and len(verdicts) < ranks:
        few = f"no mistake shows with {len(verdicts)} rank(s), but some show only with {ranks}"
        print(f"Exercise {title}: {few}: start the check with --nproc-per-node={ranks}")
    elif kinds == {"right"}:
        print(f"Exercise {title}: {verdicts[0]}")
    else:
        worst = next(kind for kind in ("wrong", "stuck", "not started") if kind in kinds)
        faults = {
            rank: f"[rank {rank}] Exercise {title}: {verdict}"
            for rank, verdict in enumerate(verdicts)
            if verdict.startswith(worst)
        }
        text = "\n".join(faults.values())
        folder = os.environ.get("RANK_REPLAY_FOLDER")
        if folder:
            Path(folder, "verdicts.json").write_text(json.dumps(faults), encoding="utf-8")
        elif worst != "not started" and _has_communication(path):
            text += f"\nSee it line by line on all ranks: {_replay_command(path)}"
        print(text)
        last_words.keep(text)
