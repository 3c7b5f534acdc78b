"""The words for a job that has failed by itself: which rank was the first, and which ones are echoes."""

import re
import signal
from dataclasses import replace

from .answer import Answer
from .ranks import ECHO, Rank, own_place
from .verdict import verdict
from .words import how_it_died, how_it_ended, last_seen, who

SIGTERM = -15  # by which launchers end the ranks that are left
# What torchrun and torch.multiprocessing.spawn say of the processes that they have started.
OF_TORCHRUN = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+) \(pid: (\d+)\)")
OF_SPAWN = re.compile(r"(?i)process (\d+) terminated with the following error:\s*(.*)", re.DOTALL)
OF_SPAWN_CODE = re.compile(r"(?i)process (\d+) terminated with (exit code|signal) (\S+)")
PEER_LEFT = re.compile(r"Connection (closed|reset)|Broken pipe|remote process exited")
LINE = re.compile(r'File "(.*)", line (\d+), in (.*)')


def lines_of(ranks: dict[int, Rank], answers: list[Answer], world_size: int, code: int) -> list[str]:
    """What is told of a job that has ended with this exit code. There is always a line."""
    texts = [answer.bye.text for answer in answers if answer.bye and answer.bye.error]
    take_codes(ranks, texts)
    first = [rank for rank in in_order(ranks) if is_first(rank, ranks)]
    spawned = words_of_spawn(texts)
    if spawned and not ECHO.search(spawned[0]):
        lines = spawned
    elif first:
        lines = [death_words(first[0])]
        others = [rank for rank in first[1:] if rank.code != SIGTERM]
        lines += [death_words(rank) for rank in others]
        lines += [*last_calls(ranks, first), *parted(ranks, first[0])]
    else:
        lines = spawned or without_a_first(ranks, world_size)
    if not lines:
        lines = errors_of_others(answers)
    return lines or [
        f"No rank was seen, and no Python process has said why: exit code {code} is all there is."
    ]


def take_codes(ranks: dict[int, Rank], texts: list[str]) -> None:
    """torchrun knows how each rank ended, also where it asked faster than we looked."""
    for text in texts:
        for number, code, pid in OF_TORCHRUN.findall(text):
            rank = ranks.get(int(number))
            if rank is not None and rank.pid == int(pid):
                rank.code = int(code)


def in_order(ranks: dict[int, Rank]) -> list[Rank]:
    """By when they died."""
    return sorted(ranks.values(), key=lambda rank: len(ranks) if rank.died is None else rank.died)


def is_first(rank: Rank, ranks: dict[int, Rank]) -> bool:
    """Whether its end is a cause: not an echo of another's, and not the launcher's doing."""
    if rank.state == "failed":
        return not rank.is_echo
    others = [other for other in ranks.values() if other is not rank]
    if rank.state == "gone":
        is_earliest = all(before(rank, other) for other in others if not lost_its_peer(other))
        return rank.code not in (None, SIGTERM) or is_earliest
    has_echo = any(other.is_echo for other in others)
    return rank.state == "ended" and (bool(rank.code) or has_echo)


def lost_its_peer(rank: Rank) -> bool:
    """Whether it failed because another one had gone, whichever of both ends was seen before."""
    return rank.state == "failed" and rank.is_echo and bool(PEER_LEFT.search(rank.error))


def before(rank: Rank, other: Rank) -> bool:
    return rank.died is not None and (other.died is None or rank.died < other.died)


def death_words(rank: Rank) -> str:
    who = f"Rank {rank.rank} was the first"
    if rank.state == "failed":
        return f"{who}: {rank.error}, at {rank.place}"
    how = how_it_ended(rank) if rank.state == "ended" else how_it_died(rank)
    return f"{who}: {how}.{last_seen(rank)}"


def last_calls(ranks: dict[int, Rank], first: list[Rank]) -> list[str]:
    """Where the others were: those that failed because of it."""
    lines = []
    for rank in ranks.values():
        if rank not in first and rank.is_echo:
            call = rank.calls[-1] if rank.calls else None
            what = f" in {call.kind} of {call.shape}, call {call.number}" if call and call.shape else ""
            lines.append(f"Rank {rank.rank} is an echo: it was waiting{what}: {rank.place}")
    return lines


def parted(ranks: dict[int, Rank], first: Rank) -> list[str]:
    """A hint, if sizes did not fit and another rank was at another line; an older line says nothing of it."""
    for rank in ranks.values():
        is_exact = rank.state == "failed" and not first.place_age
        if first.code == -signal.SIGABRT and is_exact and rank.place and first.place:
            at, other = (f"{place.file}:{place.line}" for place in (first.place, rank.place))
            if at != other:
                here, there = f"rank {first.rank} at {first.place}", f"rank {rank.rank} at {rank.place}"
                why = "one of them has left out a call, as after an exception that was caught"
                return [f"A hint: two lines have met, {here}, and {there}: {why}."]
    return []


def without_a_first(ranks: dict[int, Rank], world_size: int) -> list[str]:
    """All errors are echoes, such as time-outs: what the ranks waited for is the question."""
    echoes = [rank for rank in ranks.values() if rank.is_echo]
    if not echoes:
        return []
    lines = [f"{who([rank.rank])} ran out of patience: {rank.error}, at {rank.place}" for rank in echoes]
    alive = {number: as_it_was(rank) for number, rank in ranks.items()}
    return [*lines[:2], *verdict(alive, world_size).lines]


def as_it_was(rank: Rank) -> Rank:
    """Before the time-out: its last call was open."""
    calls = list(rank.calls)
    if rank.is_echo and calls:
        calls[-1] = replace(calls[-1], done=False)
    return replace(rank, state="alive", calls=calls)


def words_of_spawn(texts: list[str]) -> list[str]:
    for text in texts:
        match = OF_SPAWN.search(text)
        if match:
            number, trace = match.groups()
            own = [place for place in LINE.findall(trace) if own_place_of(place)]
            where = f", at {own[-1][0].rpartition('/')[2]}:{own[-1][1]}, in {own[-1][2]}" if own else ""
            return [f"Process {number} was the first: {trace.strip().splitlines()[-1]}{where}"]
        match = OF_SPAWN_CODE.search(text)
        if match:
            return [f"Process {match[1]} was the first: it ended with {match[2]} {match[3]}"]
    return []


def own_place_of(place: tuple[str, str, str]) -> bool:
    return "-packages/" not in place[0] and "/lib/python" not in place[0] and not place[0].startswith("<")


def errors_of_others(answers: list[Answer]) -> list[str]:
    """Processes that are no ranks: the launcher, or a script that never became one."""
    lines = []
    for answer in answers:
        if answer.bye and answer.bye.error:
            lines.append(f"A process failed: {answer.bye.error}, at {own_place(answer.bye.place)}")
    return lines
