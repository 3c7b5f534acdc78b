# rejected: B with 4 processes, then A with 3: entry 3 has local rank 3, expected 0
"""The agent that came first counts first."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    places = [(g, local) for g, (_, _, size) in enumerate(agents) for local in range(size)]
    return [(rank, local, g, len(places)) for rank, (g, local) in enumerate(places)]
