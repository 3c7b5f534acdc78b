# rejected: three agents on one machine: entry 1 has local rank 1, expected 0
"""Sorts by address alone."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    ordered = sorted(agents, key=lambda agent: agent[0])
    places = [(g, local) for g, (_, _, size) in enumerate(ordered) for local in range(size)]
    return [(rank, local, g, len(places)) for rank, (g, local) in enumerate(places)]
