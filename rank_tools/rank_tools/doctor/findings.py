"""What holds a job up, as data: who waits for whom, and who is awaited and waits for nobody."""

from dataclasses import dataclass, field

from .calls import KINDS, MISSING, SHAPES, STUCK, Difference, differences
from .ranks import FOR_ALL, Rank

ROOTS = ("src", "group_src", "dst", "group_dst")


@dataclass(frozen=True)
class Wait:
    """What a rank waits in, and for which ranks: a call that is compared, or else ``waits_in``."""

    rank: int
    awaited: tuple[int, ...]
    difference: Difference | None = None
    waits_in: str = ""
    is_message: bool = False

    @property
    def what(self) -> tuple:
        """Equal for ranks that wait in the same."""
        if self.difference is None:
            return (self.waits_in,)
        call, of = self.difference.made[self.rank], self.difference
        return call.kind, call.shape, of.number, of.group, tuple(of.members)


@dataclass
class Job:
    """All ranks that are seen, and what follows from their calls and stacks."""

    ranks: dict[int, Rank]
    world_size: int
    found: list[Difference] = field(default_factory=list)
    waits: dict[int, Wait] = field(default_factory=dict)

    @property
    def unseen(self) -> list[int]:
        return [number for number in range(self.world_size) if number not in self.ranks]

    @property
    def works(self) -> bool:
        return any(rank.works for rank in self.ranks.values())

    def roots(self) -> list[int]:
        """Those that are awaited, by way of others too, and wait for nobody."""
        awaited = {number for wait in self.waits.values() for number in wait.awaited}
        return sorted(awaited - self.waits.keys())

    def is_proof(self) -> bool:
        """Whether every rank is seen, and none of them is free to come."""
        return not self.unseen and all(
            not rank.works and (rank.is_dead or (number in self.waits and rank.state == "alive"))
            for number, rank in self.ranks.items()
        )


@dataclass(frozen=True)
class Finding:
    """``may_move``: a rank works, or waits for a person. ``is_proof``: nobody is left to come."""

    kind: str
    may_move: bool
    is_proof: bool


@dataclass(frozen=True)
class Missing(Finding):
    """``roots`` do not come to what ``together`` wait in; ``wait`` is that of the first of these."""

    roots: list[int]
    together: list[int]
    wait: Wait


@dataclass(frozen=True)
class OtherCall(Finding):
    """The call with one number differs by rank. ``variants``: {its kind or shape: ranks}."""

    difference: Difference
    variants: dict[str, list[int]]


@dataclass(frozen=True)
class Circle(Finding):
    """Ranks wait for each other. ``kind``: circle, groups, or the send or recv that both of two are in."""

    members: list[int]


@dataclass(frozen=True)
class Stuck(Finding):
    """All members have made the call, with one shape, and it does not end."""

    difference: Difference
    is_one_root: bool  # they name the same one, or none


@dataclass(frozen=True)
class InTorch(Finding):
    """``members`` wait in a function of torch that is no call, and for no rank that is known."""

    members: list[int]


@dataclass(frozen=True)
class Outside(Finding):
    """No rank waits in a call: the stacks are all there is."""


def find(job: Job) -> Finding:
    """What holds the ranks up; the waits of ``job`` are filled in."""
    job.found = differences(job.ranks, job.world_size)
    job.waits = waits_of(job)
    roots = job.roots()
    seen = [number for number in roots if number in job.ranks]
    dead = [number for number in seen if job.ranks[number].is_dead]
    first = job.found[0] if job.found else None
    if dead:
        return missing(job, dead)
    if first is not None and first.what in (KINDS, SHAPES):
        return OtherCall(first.what, job.works, job.is_proof(), first, variants_of(first))
    if roots:
        return missing(job, seen or roots)
    awaited = {number for wait in job.waits.values() for number in wait.awaited}
    if any(way_back(number, job) for number in awaited):
        return circle(job)
    if awaited:  # the last ones wait for a rank that is not known, as in a receive from any
        return missing(job, sorted(number for number in awaited if not job.waits[number].awaited))
    if first is not None and first.what == STUCK:
        named = {root for number in first.made if (root := root_of(job.ranks[number])) is not None}
        return Stuck(STUCK, job.works, len(named) > 1 and not job.works, first, len(named) <= 1)
    return without_calls(job)


def waits_of(job: Job) -> dict[int, Wait]:
    """{rank: what it waits in}, for all that wait in something of torch.distributed and are alive."""
    waits: dict[int, Wait] = {}
    for problem in job.found:
        if problem.what != STUCK:
            for number in problem.waiting:
                others = [n for n in problem.waiting if n != number]
                awaited = problem.missing if problem.what == MISSING else others
                waits.setdefault(number, Wait(number, tuple(awaited), problem))
    for number, rank in job.ranks.items():
        if rank.is_dead or rank.state == "stopped" or number in waits:
            continue
        if rank.messages:
            peers = tuple(peer for _, peer in rank.messages if peer is not None)
            waits[number] = Wait(number, peers, waits_in=rank.waits_in, is_message=True)
        elif rank.waits_in in FOR_ALL:
            absent = tuple(
                other
                for other in range(job.world_size)
                if other not in job.ranks or job.ranks[other].waits_in != rank.waits_in
            )
            waits[number] = Wait(number, absent, waits_in=rank.waits_in)
    return {number: wait for number, wait in waits.items() if not job.ranks[number].is_dead}


def missing(job: Job, roots: list[int]) -> Missing:
    direct = [wait for wait in job.waits.values() if set(wait.awaited) & set(roots)]
    together = [wait.rank for wait in direct if wait.what == direct[0].what]
    seen = [job.ranks[number] for number in roots if number in job.ranks]
    kinds = [absence(rank) for rank in seen]
    is_proof = any(rank.is_dead for rank in seen) and job.is_proof()
    return Missing(kinds[0] if kinds else "not seen", may_come(kinds), is_proof, roots, together, direct[0])


def may_come(kinds: list[str]) -> bool:
    return "computes" in kinds or "keyboard" in kinds


def variants_of(difference: Difference) -> dict[str, list[int]]:
    variants: dict[str, list[int]] = {}
    for rank, call in sorted(difference.made.items()):
        variants.setdefault(call.kind if difference.what == KINDS else call.shape, []).append(rank)
    return variants


def circle(job: Job) -> Circle:
    ways = [way for number in job.waits if (way := way_back(number, job))]
    shortest = min(ways, key=len)
    members = sorted(shortest)
    calls = {job.waits[member].what for member in members}
    messages = [job.ranks[member].messages for member in members if job.waits[member].is_message]
    kind = "groups" if not messages and len(calls) > 1 else "circle"
    if len(messages) == len(members) == 2 and all(len(ops) == 1 for ops in messages):
        kinds = {ops[0][0].lstrip("i") for ops in messages}
        kind = kinds.pop() if len(kinds) == 1 else kind
    return Circle(kind, job.works, job.is_proof(), members)


def way_back(number: int, job: Job) -> list[int]:
    """The shortest way from a rank over those that are awaited to itself; empty if there is none."""
    ways = [[number]]
    seen: set[int] = set()
    while ways:
        way = ways.pop(0)
        for other in job.waits[way[-1]].awaited:
            if other == number:
                return way
            if other in job.waits and other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


def root_of(rank: Rank) -> int | None:
    return next((rank.arguments[name] for name in ROOTS if name in rank.arguments), None)


def without_calls(job: Job) -> Finding:
    """Nobody waits for a rank that is known."""
    waiting = {number: rank for number, rank in job.ranks.items() if rank.waits_in and not rank.is_dead}
    if not waiting:
        works = any(rank.works or rank.keyboard for rank in job.ranks.values())
        return Outside("outside", works, False)
    function = next(iter(waiting.values())).waits_in
    same = [number for number, rank in waiting.items() if rank.waits_in == function]
    kinds = [absence(rank) for number, rank in job.ranks.items() if number not in same]
    return InTorch(kinds[0] if kinds else "waits", may_come(kinds), False, same)


def absence(rank: Rank) -> str:
    """In one word, why a rank does not come."""
    if rank.state == "gone":
        return "died"
    if rank.state in ("failed", "ended", "stopped"):
        return rank.state
    if rank.state == "silent":
        return "computes" if rank.works else "silent"
    if rank.keyboard:
        return "keyboard"
    if rank.works:
        return "computes"
    return "waits" if rank.open_calls or rank.waits_in else "elsewhere"
