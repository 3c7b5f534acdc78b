"""Exercise 01: who is who in an uneven cluster."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    """Return (rank, local rank, group rank, world size) of every process, in order of rank.

    ``agents`` holds (address, process id, number of processes) of each agent, in the order in which they
    came. They count off as under c10d: sorted by address, as text, then by process id. The numbers of
    processes may differ; each is at least 1.
    """
    # solution: begin
    sizes = [size for _, _, size in sorted(agents)]
    places = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    return [(rank, local, node, len(places)) for rank, (node, local) in enumerate(places)]
    # solution: end
