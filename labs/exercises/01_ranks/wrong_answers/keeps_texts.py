# rejected: A with 3 processes, then B with 4: entry 0 has rank '0', a str; expected an int
"""The numbers as texts, as they stand in the environment."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    sizes = [size for _, _, size in sorted(agents)]
    places = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    return [(str(rank), str(local), str(node), str(len(places))) for rank, (node, local) in enumerate(places)]
