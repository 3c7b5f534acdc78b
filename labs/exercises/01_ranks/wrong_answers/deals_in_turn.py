# rejected: A with 3 processes, then B with 4: entry 1 has local rank 0, expected 1
"""Deals the ranks to the nodes in turn, like cards."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    sizes = [size for _, _, size in sorted(agents)]
    places = [(local, g) for local in range(max(sizes)) for g, n in enumerate(sizes) if local < n]
    return [(rank, local, g, len(places)) for rank, (local, g) in enumerate(places)]
