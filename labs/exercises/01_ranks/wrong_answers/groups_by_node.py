# rejected: all_ranks returned a list of lists, expected a list of tuples
"""A list for each node instead of one for all."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    sizes = [size for _, _, size in sorted(agents)]
    return [[(sum(sizes[:g]) + i, i, g, sum(sizes)) for i in range(n)] for g, n in enumerate(sizes)]
