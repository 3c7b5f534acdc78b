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
ABSENT = ("ivy", "jim", "kay", "lou", "max", "nia", "ola", "pam", "quin", "ron", "sue", "tom")
LATE_S = 1.5  # so much later comes the last one
LATER_S = 2.6  # where some are missing: nearly the timeout of that meeting


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


class LateAnswers(dist.Store):
    """A store that answers the first look of a process, and its first ``get``, when all have asked theirs.

    So nobody is alone between a question and a write that relies on its answer. Requests that look and
    write in one step, such as ``add`` and ``compare_set``, are answered at once.
    """

    LONGEST_S = 4.0  # perhaps somebody asks nothing; a busy machine takes seconds, too

    def __init__(self, inner: dist.Store, processes: int) -> None:
        super().__init__()
        self.inner = inner
        self.processes = processes
        self.questions = dist.PrefixStore("questions", inner)
        self.has_asked: set[str] = set()

    def _late(self, kind: str, answer: object) -> object:
        if kind not in self.has_asked:
            self.has_asked.add(kind)
            self.questions.add(kind, 1)
            for _ in range(round(self.LONGEST_S / 0.02)):
                if self.questions.add(kind, 0) >= self.processes:
                    break
                time.sleep(0.02)
        return answer

    def check(self, keys: list[str]) -> bool:
        return self._late("look", self.inner.check(keys))

    def num_keys(self) -> int:
        return self._late("look", self.inner.num_keys())

    def add(self, key: str, amount: int) -> int:
        answer = self.inner.add(key, amount)
        return answer if amount else self._late("look", answer)

    def get(self, key: str) -> bytes:
        try:
            return self._late("get", self.inner.get(key))
        except dist.DistStoreError:
            self._late("look", None)
            raise

    def set(self, key: str, value: str) -> None:
        self.inner.set(key, value)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.inner.compare_set(key, expected, desired)

    def append(self, key: str, value: str) -> None:
        self.inner.append(key, value)

    def delete_key(self, key: str) -> bool:
        return self.inner.delete_key(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._late("get", self.inner.multi_get(keys))

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        self.inner.multi_set(keys, values)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """A wait that fails is a look as well: ``wait([key], a millisecond)``."""
        try:
            self.inner.wait(keys, *timeout)
        except dist.DistStoreError:
            self._late("look", None)
            raise

    def set_timeout(self, timeout: timedelta) -> None:
        self.inner.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        return self.inner.timeout


@contextmanager
def no_warnings() -> Iterator[None]:
    """Drop what C++ writes to stderr meanwhile: a store warns of each timeout, also of one that we want."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def attempt(
    answer: ModuleType, meeting: Meeting, store: dist.Store, rank: int, everybody: list[str]
) -> object:
    """What ``meet`` returned or raised. It runs in a thread, so that it cannot hold up the check."""
    turn = rank % len(everybody)
    names = everybody[turn:] + everybody[:turn]  # another order on each rank
    timeout = timedelta(seconds=meeting.patience)
    outcome = []

    def call() -> None:
        try:
            outcome.append(answer.meet(store, NAMES[rank], address_of(rank), names, timeout))
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


def address_of(rank: int) -> str:
    return f"{rank}.example:5000"


def problem_of_one(found: object) -> str | None:
    """What is wrong with what ``meet`` returned or raised here, whatever it did elsewhere."""
    if isinstance(found, Exception):
        text = str(found).splitlines()[0] if str(found) else "(no text)"
        return (
            f"all came, but meet raised {type(found).__name__}: {text}; if two processes can take one rank, "
            "both wait for the rank that nobody has"
        )
    if not isinstance(found, tuple) or len(found) != 2:
        return f"meet returned {type(found).__name__}, expected a tuple of a rank and a list of addresses"
    rank, addresses = found
    if not isinstance(rank, int):
        return f"the rank is {rank!r}, a {type(rank).__name__}, expected an int"
    if not isinstance(addresses, (list, tuple)):
        return f"the addresses are a {type(addresses).__name__}, expected a list"
    for address in addresses:
        if not isinstance(address, str):
            return f"{address!r} is a {type(address).__name__}, expected a str"
    return None


def problem_of_all(found: tuple[int, list[str]], everyone: list[tuple], rank: int) -> str | None:
    """What is wrong with what this rank found, given what all of them found."""
    n = len(everyone)
    ranks = sorted(outcome[0] for outcome in everyone)
    if ranks != list(range(n)):
        return f"{n} processes took the ranks {ranks}, expected {list(range(n))}"
    if sorted(found[1]) != [address_of(r) for r in range(n)]:
        return f"the addresses are {found[1]}, expected one of each of the {n} processes"
    if found[1][found[0]] != address_of(rank):
        return f"{NAMES[rank]} has rank {found[0]}, but its address stands in another place"
    if any(list(outcome[1]) != list(found[1]) for outcome in everyone):
        return "the processes do not agree on who has which rank"
    return None


def everybody_comes(answer: ModuleType, group: Group, meeting: Meeting, late: bool) -> bool:
    """Whether all found the right thing; raise ``Wrong`` on a rank that did not.

    ``late``: the last one comes late. Otherwise all look into the store at the same time.
    """
    rank, n = group.rank, group.world_size
    arrivals = dist.PrefixStore("arrivals", meeting.store)
    store = meeting.store if late else LateAnswers(meeting.store, n)
    dist.barrier()
    if late and rank == n - 1:
        time.sleep(LATE_S)
        arrivals.set("the late one", "came")
    outcome = attempt(answer, meeting, store, rank, list(NAMES[:n]))
    problem = problem_of_one(outcome)
    if problem is None and late and not arrivals.check(["the late one"]):
        problem = f"went on before {NAMES[n - 1]} had come"
    everyone = [None] * n
    dist.all_gather_object(everyone, None if problem else outcome)
    if problem is None and None not in everyone:
        problem = problem_of_all(outcome, everyone, rank)
    problems = [None] * n
    dist.all_gather_object(problems, problem)
    if problem:
        raise Wrong(problem)
    return not any(problems)


def some_are_missing(answer: ModuleType, group: Group, meeting: Meeting) -> None:
    """Those in ``ABSENT`` never come: after one timeout in all, the error names them and nobody else.

    The last one of those who come is late, so a whole timeout for each name is noticed.
    """
    present = NAMES[: group.world_size]
    dist.barrier()
    if group.rank == group.world_size - 1:
        time.sleep(LATER_S)
    ending = attempt(answer, meeting, meeting.store, group.rank, [*present, *ABSENT])
    if not isinstance(ending, TimeoutError):
        what = f"raised {type(ending).__name__}" if isinstance(ending, Exception) else "returned"
        raise Wrong(f"{len(ABSENT)} did not come, and meet {what}; expected is TimeoutError")
    named = [name for name in (*present, *ABSENT) if re.search(rf"\b{name}\b", str(ending))]
    unnamed = [name for name in ABSENT if name not in named]
    blamed = [name for name in present if name in named]
    if unnamed:
        raise Wrong(f"{unnamed[-1]} did not come, but the error does not say so: {str(ending)!r}")
    if blamed:
        raise Wrong(f"the error names {blamed[-1]}, who came: {str(ending)!r}")


def verify(answer: ModuleType, group: Group) -> str:
    n = group.world_size
    if n < 2:
        raise Wrong("a rendezvous needs two processes: --nproc-per-node=2")
    # The stores are connected before the first collective: a slow start is nobody's fault.
    at_once = Meeting("at the same time", 8, 10, 15)
    one_late = Meeting("one is late", 8, 10, 15)
    some_missing = Meeting("some are missing", 3, 20, 5)  # the store's own timeout is too long
    went_well = everybody_comes(answer, group, one_late, late=True)
    went_well = went_well and everybody_comes(answer, group, at_once, late=False)
    if went_well:
        some_are_missing(answer, group, some_missing)
    return (
        f"{n} processes waited for a late one, met at the same time, and named {len(ABSENT)} who did not "
        "come. Well done."
    )


if __name__ == "__main__":
    check_exercise("02_meet", verify, ranks=3)
