# accepted: it changes the list that it was given, and finds each number by comparing with all others
"""No running count: a group rank is the number of agents that sort before."""


def all_ranks(agents: list[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    agents.sort()
    world_size = sum(size for _, _, size in agents)
    found = []
    for agent in agents:
        before = [other for other in agents if other[:2] < agent[:2]]
        offset = sum(size for _, _, size in before)
        for local in reversed(range(agent[2])):
            found.append((offset + local, local, len(before), world_size))
    return sorted(found)
