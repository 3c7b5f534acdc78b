"""The ranks' calls side by side: the first one that is not the same on all ranks of its group."""

from dataclasses import dataclass

from .ranks import Call, Rank

DEFAULT = "default_pg"
KINDS, SHAPES, MISSING, STUCK = "kinds", "shapes", "missing", "stuck"


@dataclass(frozen=True)
class Detour:
    """Two ranks have one call from two lines, and one of them has the other's line before or after it.

    A hint and no proof: branches are legal. ``swapped``: the next call is from the other line; else ``late``
    is the rank that has left out the line of the other one.
    """

    group: str
    number: int
    early: int
    late: int
    calls: tuple[Call, Call]  # of early and late, with this number
    swapped: bool


@dataclass(frozen=True)
class Difference:
    """One call of a group. ``made``: {rank: its call}; ``missing``: members that have not made it.

    STUCK: all members have made the same call, and it does not end.
    """

    what: str
    group: str
    number: int
    made: dict[int, Call]
    missing: list[int]
    members: list[int]

    @property
    def waiting(self) -> list[int]:
        return [rank for rank, call in self.made.items() if not call.done]


def members_of(call: Call, rank: Rank, ranks: dict[int, Rank], world_size: int) -> tuple[int, ...]:
    """The ranks of a call's group, as the rank itself knows them, else as others know a group of that name.

    torch counts groups on each rank, so one name may be another group on another rank.
    """
    if call.group_name == DEFAULT:
        return tuple(range(world_size))
    for knows in (rank, *ranks.values()):
        if rank.rank in (known := knows.groups.get(call.group, [])):
            return tuple(sorted(known))
    return tuple(sorted(ranks))


def by_group(ranks: dict[int, Rank], world_size: int) -> dict[tuple, dict[int, dict[int, Call]]]:
    """{(group, its name, its members): {rank: {number: its collective}}}."""
    logs_by_group: dict[tuple, dict[int, dict[int, Call]]] = {}
    for number, rank in ranks.items():
        for call in rank.calls:
            if call.is_p2p or (rank.state == "stopped" and not call.done):
                continue  # what a stopped rank is in now nobody knows
            key = (call.group, call.group_name, members_of(call, rank, ranks, world_size))
            calls = logs_by_group.setdefault(key, {}).setdefault(number, {})
            calls.setdefault(call.number, call)
    return logs_by_group


def differences(ranks: dict[int, Rank], world_size: int) -> list[Difference]:
    """The first difference of each group, those first that need no waiting to be wrong."""
    firsts = []
    for (group, group_name, members), logs in by_group(ranks, world_size).items():
        name = group_name if group_name == DEFAULT else group
        difference = first_difference(name, logs, list(members))
        if difference is not None:
            firsts.append(difference)
    order = (KINDS, SHAPES, MISSING, STUCK)
    return sorted(
        firsts, key=lambda first: (order.index(first.what), min(call.id for call in first.made.values()))
    )


def first_difference(group: str, logs: dict[int, dict[int, Call]], members: list[int]) -> Difference | None:
    """The log is a ring: what the oldest entry of one rank comes after is not compared."""
    first = max(min(log) for log in logs.values())
    last = max(max(log) for log in logs.values())
    for number in range(first, last + 1):
        made = {rank: log[number] for rank, log in logs.items() if number in log}
        missing = [rank for rank in members if rank not in made]
        if len({call.kind for call in made.values()}) > 1:
            return Difference(KINDS, group, number, made, missing, members)
        if len({call.shape for call in made.values()}) > 1:
            return Difference(SHAPES, group, number, made, missing, members)
        if missing and any(not call.done for call in made.values()):
            return Difference(MISSING, group, number, made, missing, members)
        if all(not call.done for call in made.values()):
            return Difference(STUCK, group, number, made, missing, members)
    return None


def not_made(ranks: dict[int, Rank], world_size: int) -> list[Difference]:
    """The first call of each group that is over on some ranks and that others have not made.

    It has timed out and nobody waits in it, or it is one such as a broadcast, whose source may be early.
    """
    found = []
    for (group, group_name, members), logs in by_group(ranks, world_size).items():
        known = [n for n in members if n in ranks and ranks[n].state in ("alive", "failed")]
        last = {n: max(logs.get(n, {}), default=0) for n in known}
        number = min(last.values(), default=0) + 1
        made = {n: log[number] for n, log in logs.items() if number in log}
        missing = [n for n in known if last[n] < number]
        if made and missing:
            name = group_name if group_name == DEFAULT else group
            found.append(Difference(MISSING, name, number, made, missing, list(members)))
    return found


def line_of(call: Call | None) -> tuple[str, int] | None:
    return None if call is None or call.place is None else (call.place.file, call.place.line)


def detours(ranks: dict[int, Rank], world_size: int) -> list[Detour]:
    """The first call of each group that two ranks make from lines in another order."""
    found = []
    for (group, group_name, _), logs in by_group(ranks, world_size).items():
        name = group_name if group_name == DEFAULT else group
        first = max(min(log) for log in logs.values())
        numbers = range(first, max(max(log) for log in logs.values()) + 1)
        pairs = [(one, other) for one in logs for other in logs if one < other]
        of_group = [detour(name, number, *pair, logs) for number in numbers for pair in pairs]
        found += [one for one in of_group if one is not None][:1]
    return found


def detour(group: str, number: int, one: int, other: int, logs: dict[int, dict[int, Call]]) -> Detour | None:
    """How two ranks go apart at a call, if they were at one line before, or it is their first one."""
    mine, yours = logs[one].get(number), logs[other].get(number)
    lines = [line_of(mine), line_of(yours)]
    before = {line_of(logs[rank].get(number - 1)) for rank in (one, other)}
    if mine is None or yours is None or None in lines or lines[0] == lines[1] or len(before) > 1:
        return None
    for early, late in ((one, other), (other, one)):
        if is_behind(logs[early], logs[late], number):
            return Detour(group, number, early, late, (logs[early][number], logs[late][number]), False)
    after = [line_of(logs[rank].get(number + 1)) for rank in (one, other)]
    if after == lines[::-1]:
        return Detour(group, number, one, other, (mine, yours), True)
    return None


def is_behind(early: dict[int, Call], late: dict[int, Call], number: int) -> bool:
    """Whether the calls of one rank from a number on are those of the other rank without the first."""
    pairs = [
        (call, early[place + 1]) for place, call in late.items() if place >= number and place + 1 in early
    ]
    same = [line_of(call) == line_of(other) for call, other in pairs]
    return max(early) > max(late) and all(same) and bool(same)
