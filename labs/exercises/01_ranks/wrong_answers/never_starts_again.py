# rejected: A with 3 processes, then B with 4: entry 3 has local rank 3, expected 0
"""The local rank counts on from node to node."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    nodes = [g for g, (_, _, size) in enumerate(sorted(agents)) for _ in range(size)]
    return [(rank, rank, g, len(nodes)) for rank, g in enumerate(nodes)]
