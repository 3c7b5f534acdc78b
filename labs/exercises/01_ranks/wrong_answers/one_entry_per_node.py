# rejected: A with 3 processes, then B with 4: 2 processes are listed, expected 7
"""Lists the first process of each node only."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    sizes = [size for _, _, size in sorted(agents)]
    return [(sum(sizes[:g]), 0, g, sum(sizes)) for g in range(len(sizes))]
