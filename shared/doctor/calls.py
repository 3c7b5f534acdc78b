"""The ranks' calls side by side: the first one that is not the same on all ranks of its group."""

from dataclasses import dataclass

from .ranks import Call, Rank

DEFAULT = "default_pg"
KINDS, SHAPES, MISSING, STUCK = "kinds", "shapes", "missing", "stuck"


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


def members_of(group: str, group_name: str, ranks: dict[int, Rank], world_size: int) -> list[int]:
    """The ranks of a group, as any of its members knows them."""
    if group_name == DEFAULT:
        return list(range(world_size))
    for rank in ranks.values():
        if group in rank.groups:
            return sorted(rank.groups[group])
    return sorted(ranks)


def by_group(ranks: dict[int, Rank]) -> dict[tuple[str, str], dict[int, dict[int, Call]]]:
    """{(group, its name): {rank: {number: its collective}}}."""
    logs_by_group: dict[tuple[str, str], dict[int, dict[int, Call]]] = {}
    for number, rank in ranks.items():
        for call in rank.calls:
            if not call.is_p2p:
                calls = logs_by_group.setdefault((call.group, call.group_name), {}).setdefault(number, {})
                calls.setdefault(call.number, call)
    return logs_by_group


def differences(ranks: dict[int, Rank], world_size: int) -> list[Difference]:
    """The first difference of each group, those first that need no waiting to be wrong."""
    firsts = []
    for (group, group_name), logs in by_group(ranks).items():
        members = members_of(group, group_name, ranks, world_size)
        difference = first_difference(group_name if group_name == DEFAULT else group, logs, members)
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
