# rejected: A with 3 processes, then B with 4: entry 0 holds 3 values, expected rank, local rank
"""Three numbers for each process."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    sizes = [size for _, _, size in sorted(agents)]
    places = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    return [(rank, local, node) for rank, (node, local) in enumerate(places)]
