"""Answers to exercise 01."""

from tests.planted import Right, Wrong, solved

ROWS = "return [(rank, local, node, len(places)) for rank, (node, local) in enumerate(places)]"
ALL_RANKS = solved("01_ranks", "all_ranks")

ANSWERS = [
    Wrong(
        what="Sorts by address alone.",
        old="sorted(agents)",
        new="sorted(agents, key=lambda agent: agent[0])",
        told="three agents on one machine: entry 1 has local rank 1, expected 0",
    ),
    Wrong(
        what="Three numbers for each process.",
        old=", len(places)",
        new="",
        told="A with 3 processes, then B with 4: entry 0 holds 3 values, expected rank, local rank",
    ),
    Wrong(
        what="A list for each node instead of one for all.",
        old=ROWS,
        new="return [[(i, i, g, sum(sizes)) for i in range(n)] for g, n in enumerate(sizes)]",
        told="all_ranks returned a list of lists, expected a list of tuples",
    ),
    Wrong(
        what="The numbers as texts, as they stand in the environment.",
        old="rank, local, node, len(places)",
        new="str(rank), str(local), str(node), str(len(places))",
        told="A with 3 processes, then B with 4: entry 0 has rank '0', a str; expected an int",
    ),
    Wrong(
        what="The agent that came first counts first.",
        old="sorted(agents)",
        new="agents",
        told="B with 4 processes, then A with 3: entry 3 has local rank 3, expected 0",
    ),
    Wrong(
        what="Lists the first process of each node only.",
        old=ROWS,
        new="return [(sum(sizes[:g]), 0, g, sum(sizes)) for g in range(len(sizes))]",
        told="A with 3 processes, then B with 4: 2 processes are listed, expected 7",
    ),
    Right(
        what="Changes the list that it was given; a group rank is the number of agents that sort before.",
        old=ALL_RANKS,
        new="""
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
]
