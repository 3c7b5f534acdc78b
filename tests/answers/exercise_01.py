"""Answers to exercise 01; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

PLACES = "places = [(node, local) for node, size in enumerate(sizes) for local in range(size)]"
ROWS = "return [(rank, local, node, len(places)) for rank, (node, local) in enumerate(places)]"

ANSWERS = [
    wrong(
        "Takes the number of nodes for the world size.",
        "A with 3 processes, then B with 4: entry 0 has world size 2, expected 7",
        ("len(places)", "len(agents)"),
    ),
    wrong(
        "Deals the ranks to the nodes in turn, like cards.",
        "A with 3 processes, then B with 4: entry 1 has local rank 0, expected 1",
        (
            PLACES,
            "places = [(node, i) for i in range(max(sizes)) for node, size in enumerate(sizes) if i < size]",
        ),
    ),
    wrong(
        "Counts with a division, so the world size is a float.",
        "A with 3 processes, then B with 4: entry 0 has world size 7.0, a float; expected an int",
        ("len(places)", "sum(sizes) / len(sizes) * len(sizes)"),
    ),
    wrong(
        "Sorts by address alone.",
        "three agents on one machine: entry 1 has local rank 1, expected 0",
        ("sorted(agents)", "sorted(agents, key=lambda agent: agent[0])"),
    ),
    wrong(
        "Three numbers for each process.",
        "A with 3 processes, then B with 4: entry 0 holds 3 values, expected rank, local rank",
        (", len(places)", ""),
    ),
    wrong(
        "A list for each node instead of one for all.",
        "all_ranks returned a list of lists, expected a list of tuples",
        (
            ROWS,
            "return [[(i, i, g, sum(sizes)) for i in range(n)] for g, n in enumerate(sizes)]",
        ),
    ),
    wrong(
        "The numbers as texts, as they stand in the environment.",
        "A with 3 processes, then B with 4: entry 0 has rank '0', a str; expected an int",
        ("rank, local, node, len(places)", "str(rank), str(local), str(node), str(len(places))"),
    ),
    wrong(
        "The agent that came first counts first.",
        "B with 4 processes, then A with 3: entry 3 has local rank 3, expected 0",
        ("sorted(agents)", "agents"),
    ),
    wrong(
        "The local rank counts on from node to node.",
        "A with 3 processes, then B with 4: entry 3 has local rank 3, expected 0",
        ("rank, local, node, len(places)", "rank, rank, node, len(places)"),
    ),
    wrong(
        "Lists the first process of each node only.",
        "A with 3 processes, then B with 4: 2 processes are listed, expected 7",
        (ROWS, "return [(sum(sizes[:g]), 0, g, sum(sizes)) for g in range(len(sizes))]"),
    ),
    wrong(
        "Puts node2 before node10.",
        "node2 with 1 process, then node10 with 5: entry 1 has local rank 0, expected 1",
        (
            "sorted(agents)",
            r'sorted(agents, key=lambda agent: (int(re.sub(r"\D", "", agent[0]) or 0), agent))',
        ),
        below="import re",
    ),
    wrong(
        "The formula for equal nodes: group rank times this node's processes, plus local rank.",
        "A with 3 processes, then B with 4: entry 3 has rank 4, expected 3",
        (ROWS, "return [(g * n + i, i, g, sum(sizes)) for g, n in enumerate(sizes) for i in range(n)]"),
    ),
    right(
        "Changes the list that it was given; a group rank is the number of agents that sort before.",
        all_ranks="""
        agents.sort()
        world_size = sum(size for _, _, size in agents)
        found = []
        for agent in agents:
            before = [other for other in agents if other[:2] < agent[:2]]
            offset = sum(size for _, _, size in before)
            for local in reversed(range(agent[2])):
                found.append((offset + local, local, len(before), world_size))
        return sorted(found)
        """,
    ),
    right(
        "Named tuples of numpy's integers.",
        all_ranks="""
        sizes = np.array([size for _, _, size in sorted(agents)])
        offsets = np.cumsum(sizes) - sizes
        places = []
        for node, size in enumerate(sizes):
            for local in range(size):
                places.append(Place(offsets[node] + local, local, node, sizes.sum()))
        return places
        """,
        below="""
        from collections import namedtuple

        import numpy as np

        Place = namedtuple("Place", ["rank", "local_rank", "group_rank", "world_size"])
        """,
    ),
]
