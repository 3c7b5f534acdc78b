# rejected: A with 3 processes, then B with 4: entry 0 has world size 2, expected 7
"""Takes the world size for the number of nodes."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    places = [(g, local) for g, (_, _, size) in enumerate(sorted(agents)) for local in range(size)]
    return [(rank, local, g, len(agents)) for rank, (g, local) in enumerate(places)]
