# rejected: A with 3 processes, then B with 4: entry 0 has world size 7.0, a float; expected an int
"""Counts with a division, so the world size is a float."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    sizes = [size for _, _, size in sorted(agents)]
    mean = sum(sizes) / len(sizes)
    places = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    return [(rank, local, node, mean * len(sizes)) for rank, (node, local) in enumerate(places)]
