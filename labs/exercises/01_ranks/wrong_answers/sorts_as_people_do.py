# rejected: node2 with 1 process, then node10 with 5: entry 1 has local rank 0, expected 1
"""Puts node2 before node10."""

import re


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    def key(agent: tuple[str, int, int]) -> tuple:
        return int(re.sub(r"\D", "", agent[0]) or 0), agent

    places = [(g, local) for g, (_, _, n) in enumerate(sorted(agents, key=key)) for local in range(n)]
    return [(rank, local, g, len(places)) for rank, (g, local) in enumerate(places)]
