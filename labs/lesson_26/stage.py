"""A stage: two ranks, seldom four, play a failure, broken and cured; what each of them says is compared.

The ranks are forks of one process that has imported torch, so a case takes a fraction of a second.
"""

import gc
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer would import it, in each rank
import torch.distributed as dist

from shared.runtime.children import Child
from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_ports

HANG, ERROR, WRONG = "a hang", "an error", "wrong numbers"
RANKS = 2
ANY = -1  # in place of a rank: one of them says it, whichever is the first to lose patience
AT_ONCE = 6  # most cases only wait
LONGEST = 160  # characters of a message that are shown
# What differs from run to run, or tells of this machine, and what is shown instead.
VARYING = {
    r"\[[^\[\]\s]*\.(cc|cpp|h|hpp):\d+\]:? ?": "",  # a place in C++
    r"\[?(127\.0\.0\.1|::1|localhost|::ffff:127\.0\.0\.1)\]?(:|, )\d+": "ADDRESS",
    r"(port: |port )\d+": r"\1PORT",
    r"(after|within) \d+ ?(ms|milliseconds|seconds)": r"\1 N \2",
    r"\b0x[0-9a-f]+\b": "0x...",
    r"\x1b\[\d*m": "",  # bold letters in a terminal
    r"\[enforce fail at [^\]]*\] ": "",
    r"/(home|root|tmp|work|usr|Users|opt|var|mnt|__w)/[\w./-]*/": ".../",
    r"Warning\b": "warning",
    r"(recv|send) operation": "recv operation",  # gloo says one or the other
    r"(Read error .*?)?Connection (closed|reset) by peer.*": "Connection closed by peer",
    r"(connectFullMesh failed) with .*": r"\1",
    r"(\.invalid, )\d+": r"\1PORT",
}


@dataclass(frozen=True)
class Config:
    limit_s: float = 60.0  # then a rank is ended; the cases themselves wait for a second or two


@dataclass(frozen=True)
class Case:
    """One failure.

    Attributes:
        play: ``play(rank, cured)``, called on each rank. What it returns or raises is what the rank says.
        see: HANG, ERROR or WRONG.
        says: {rank or ANY: regular expression}: what is said when it is broken. The first entry is shown.
        right: a regular expression: what all ranks say when it is cured.
        symptom: what one sees in a job of one's own, where that is not the text of a message.
        stands: of a hang: where the ranks stand, by which hangs are told apart.
        timeout_s: how long a collective waits, in place of half an hour.
        forms_group: whether the ranks have a process group before ``play`` is called.
        ranks: how many play it.
    """

    name: str
    play: Callable[[int, bool], object]
    see: str
    says: dict[int, str]
    right: str
    did: str
    cause: str
    cure: str
    lesson: str
    symptom: str = ""
    stands: str = ""
    timeout_s: float = 2.0
    forms_group: bool = True
    ranks: int = RANKS


def collector(cases: list[Case]) -> Callable:
    """A decorator that makes a case of a function and its facts, and appends it to ``cases``."""

    def case(see: str, **facts) -> Callable:
        def collect(play: Callable) -> Callable:
            cases.append(Case(name=play.__name__, play=play, see=see, **facts))
            return play

        return collect

    return case


def folder_of_case() -> Path:
    """A folder that the ranks of one play share."""
    path = os.environ.get("CASE_FOLDER", f"{tempfile.gettempdir()}/case-{os.environ['MASTER_PORT']}")
    Path(path).mkdir(exist_ok=True)
    return Path(path)


def other_port() -> int:
    """A second free port, for cases that form a group in their own way."""
    return int(os.environ.get("CASE_PORT", int(os.environ["MASTER_PORT"]) + 1))


def act(case: Case, rank: int, cured: bool) -> str:
    """Be one rank of a case, and return what it says."""
    torch.set_num_threads(1)
    if case.forms_group:
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
        dist.barrier()  # whatever comes next does not count what it took to meet
        dist.distributed_c10d.set_timeout(timedelta(seconds=30 if cured else case.timeout_s))
    return str(case.play(rank, cured))


class Play:
    """One case on its ranks, broken or cured; each rank is a fork."""

    def __init__(self, case: Case, cured: bool) -> None:
        self.case = case
        self.cured = cured
        self.messages: dict[int, str] = {}
        self.children: list[Child] = []  # by rank
        self.ends_at = 0.0
        self.folder = Path()

    def start(self, cfg: Config) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="case-"))
        self.ends_at = time.monotonic() + cfg.limit_s
        ports = free_ports(2)
        self.children = [Child(self.be_rank, rank, ports, stays=True) for rank in range(self.case.ranks)]

    def be_rank(self, rank: int, ports: list[int]) -> str:
        """In the fork: return what comes of it, all lines of an error too."""
        errors = os.open(self.folder / f"rank_{rank}.txt", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        ranks = self.case.ranks
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        names |= {"MASTER_ADDR": HERE, "MASTER_PORT": ports[0], "CASE_PORT": ports[1]}
        names |= {"CASE_FOLDER": self.folder}
        os.environ.update({name: str(value) for name, value in names.items()})
        try:
            return act(self.case, rank, self.cured)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        except SystemExit as error:
            os._exit(error.code)

    def listen(self, rank: int) -> None:
        child = self.children[rank]
        try:
            self.messages[rank], _ = child.receiver.recv()
        except EOFError:
            child.process.join()
            self.messages[rank] = f"ended with exit code {child.process.exitcode}"

    def is_over(self) -> bool:
        return len(self.messages) == self.case.ranks or time.monotonic() > self.ends_at

    def end(self) -> None:
        for rank, child in enumerate(self.children):
            child.close()
            also = (self.folder / f"rank_{rank}.txt").read_text(encoding="utf-8", errors="replace")
            self.messages[rank] = f"{self.messages.get(rank, 'nothing: it was ended')}\n{also}".strip()
        shutil.rmtree(self.folder)


def play_all(plays: list[Play], cfg: Config) -> None:
    """Play them, a few at once; each play then holds what its ranks said."""
    gc.collect()
    gc.freeze()  # the collector of a rank need not look at all of torch
    waiting = list(plays)
    running: list[Play] = []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            play = waiting.pop(0)
            play.start(cfg)
            running.append(play)
        owner = {
            child.receiver: (play, rank)
            for play in running
            for rank, child in enumerate(play.children)
            if rank not in play.messages
        }
        for receiver in connection.wait(list(owner), timeout=0.1):
            play, rank = owner[receiver]
            play.listen(rank)
        for play in [play for play in running if play.is_over()]:
            play.end()
            running.remove(play)


def shown(text: str) -> str:
    """One line of a message, without what differs from run to run."""
    for varying, instead in VARYING.items():
        text = re.sub(varying, instead, text)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " ..."


def line_with(pattern: str, text: str) -> str:
    """The line of ``text`` that matches."""
    for line in text.splitlines():
        if re.search(pattern, line):
            return line
    raise CourseError(f"no line matches {pattern!r}")


def name_of(rank: int) -> str:
    return "a rank" if rank == ANY else f"rank {rank}"


def by_rank(play: Play, rank: int) -> str:
    """What a rank said, or all of them."""
    return "\n".join(play.messages.values()) if rank == ANY else play.messages[rank]


def judge(broken: Play, cured: Play) -> dict[str, str]:
    """A row of the gallery, or ``CourseError``: a rank did not say what we say that it says."""
    case = broken.case
    for rank, pattern in case.says.items():
        message = by_rank(broken, rank)
        if not re.search(pattern, message, re.MULTILINE):
            raise CourseError(f"{case.name}: {name_of(rank)} said {message!r}, expected {pattern!r}")
    if all(re.search(case.right, message, re.MULTILINE) for message in broken.messages.values()):
        raise CourseError(f"{case.name}: all ranks are right although it is broken")
    for rank, message in cured.messages.items():
        if not re.search(case.right, message, re.MULTILINE):
            raise CourseError(f"{case.name}, cured: rank {rank} said {message!r}, expected {case.right!r}")
    rank, pattern = next(iter(case.says.items()))
    return {
        "name": case.name,
        "see": case.see,
        "rank": name_of(rank),
        "text": shown(line_with(pattern, by_rank(broken, rank))),
        "right": shown(line_with(case.right, cured.messages[max(rank, 0)])),
        "symptom": case.symptom,
        "stands": case.stands,
        "did": case.did,
        "cause": case.cause,
        "cure": case.cure,
        "lesson": case.lesson,
    }


def rows_of(cases: list[Case], cfg: Config) -> list[dict[str, str]]:
    """Play each case twice and return its rows. All failures to fail are told at once."""
    plays = {case.name: (Play(case, cured=False), Play(case, cured=True)) for case in cases}
    play_all([play for pair in plays.values() for play in pair], cfg)
    rows = []
    complaints = []
    for broken, cured in plays.values():
        try:
            rows.append(judge(broken, cured))
        except CourseError as error:
            complaints.append(str(error))
    if complaints:
        raise CourseError("\n".join(complaints))
    return rows
