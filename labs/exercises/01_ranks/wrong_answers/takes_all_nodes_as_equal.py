# rejected: A with 3 processes, then B with 4: entry 3 has rank 4, expected 3
"""The formula for equal nodes: group rank times this node's processes, plus local rank."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    sizes = [size for _, _, size in sorted(agents)]
    return [(g * n + local, local, g, sum(sizes)) for g, n in enumerate(sizes) for local in range(n)]
