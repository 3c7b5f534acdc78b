"""Check of exercise 02. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType

import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

NAMES = ("hal", "ada", "gus", "bob", "finn", "cleo", "eve", "dan")  # in no order: ranks are not given away
LATE_S = 1.5  # so much later comes the last one


@dataclass
class Meeting:
    """Its times are seconds: the timeout that ``meet`` gets, the store's own, and when the check gives up."""

    name: str
    patience: int
    stores_patience: int
    limit: int

    def __post_init__(self) -> None:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        timeout = timedelta(seconds=self.stores_patience)
        store = dist.TCPStore(address, port, is_master=False, timeout=timeout)
        self.store = dist.PrefixStore(f"exercise 02, {self.name}", store)


@contextmanager
def no_warnings() -> Iterator[None]:
    """Drop what C++ writes to stderr meanwhile: a store warns of each timeout, also of one that we want."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def attempt(answer: ModuleType, meeting: Meeting, who: int, n: int) -> object:
    """What ``meet`` returned or raised. It runs in a thread, so that it cannot hold up the check."""
    names = [NAMES[(who + k) % n] for k in range(n)]  # another order on each rank
    outcome, timeout = [], timedelta(seconds=meeting.patience)

    def call() -> None:
        try:
            outcome.append(answer.meet(meeting.store, NAMES[who], f"{who}.example:5000", names, timeout))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    with no_warnings():
        thread.start()
        for _ in range(10 * meeting.limit):  # short waits: the machine may stand still for seconds
            thread.join(0.1)
            if outcome:
                break
    if not outcome:
        raise Wrong(f"after {meeting.limit} s meet was still waiting; its timeout was {meeting.patience} s")
    if isinstance(outcome[0], NotImplementedError):
        raise outcome[0]
    return outcome[0]


def problem_of(found: object, everyone: list, waited: bool, rank: int) -> str | None:
    """What is wrong with what this rank found, given what all of them found."""
    n = len(everyone)
    if isinstance(found, Exception):
        return f"all came, but meet raised {type(found).__name__}: {found}".splitlines()[0]
    if not waited:
        return f"went on before {NAMES[n - 1]} had come"
    if not isinstance(found, tuple) or len(found) != 2:
        return f"meet returned {type(found).__name__}, expected a rank and a list of addresses"
    ranks = [one[0] for one in everyone if isinstance(one, tuple)]
    if sorted(ranks) != list(range(n)):
        return f"{n} processes took the ranks {sorted(ranks)}, expected {list(range(n))}"
    if sorted(found[1]) != [f"{r}.example:5000" for r in range(n)]:
        return f"the addresses are {found[1]}, expected one of each of the {n} processes"
    if found[1][found[0]] != f"{rank}.example:5000":
        return f"{NAMES[rank]} has rank {found[0]}, but its address stands in another place"
    if any(one[1] != found[1] for one in everyone):
        return "the processes do not agree on who has which rank"
    return None


def everybody_comes(answer: ModuleType, group: Group, meeting: Meeting) -> bool:
    """Whether all found the right thing; raise ``Wrong`` on a rank that did not. The last one comes late."""
    n, arrivals = group.world_size, dist.PrefixStore("arrivals", meeting.store)
    dist.barrier()
    if group.rank == n - 1:
        time.sleep(LATE_S)
        arrivals.set("the late one", "came")
    found = attempt(answer, meeting, group.rank, n)
    waited = arrivals.check(["the late one"])
    everyone, problems = [None] * n, [None] * n
    dist.all_gather_object(everyone, found if isinstance(found, tuple) else None)
    problem = problem_of(found, everyone, waited, group.rank)
    dist.all_gather_object(problems, problem)
    if problem:
        raise Wrong(problem)
    return not any(problems)


def one_is_missing(answer: ModuleType, group: Group, meeting: Meeting) -> None:
    n, missing = group.world_size, NAMES[group.world_size - 1]
    if NAMES[group.rank] == missing:
        return
    found = attempt(answer, meeting, group.rank, n)
    if not isinstance(found, TimeoutError):
        what = f"raised {type(found).__name__}" if isinstance(found, Exception) else "returned"
        raise Wrong(f"{missing} did not come, and meet {what}; expected is TimeoutError")
    named = [name for name in NAMES[:n] if re.search(rf"\b{name}\b", str(found))]
    if named != [missing]:
        raise Wrong(f"{missing} is missing, but the error names {', '.join(named) or 'nobody'}")


def verify(answer: ModuleType, group: Group) -> str:
    if group.world_size < 2:
        raise Wrong("a rendezvous needs two processes: --nproc-per-node=2")
    # Both stores are connected before the first collective: a slow start is nobody's fault.
    meetings = Meeting("everybody", 8, 15, 9), Meeting("one is missing", 2, 5, 7)
    if everybody_comes(answer, group, meetings[0]):
        one_is_missing(answer, group, meetings[1])
    return f"{group.world_size} processes met, waited for the late one, and named the missing one. Well done."


if __name__ == "__main__":
    check_exercise("02_meet", verify)
