"""Check of exercise 01. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import os
from numbers import Integral
from types import ModuleType

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

CLUSTERS = {
    "A with 3 processes, then B with 4": [("a", 10, 3), ("b", 10, 4)],
    "B with 4 processes, then A with 3": [("b", 10, 4), ("a", 10, 3)],
    "node2 with 1 process, then node10 with 5": [("node2", 10, 1), ("node10", 10, 5)],
    "three agents on one machine": [("a", 30, 2), ("a", 9, 1), ("a", 20, 3)],
    "one agent": [("a", 10, 1)],
}
FIELDS = ("rank", "local rank", "group rank", "world size")
VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")


def by_counting(agents: list[tuple[str, int, int]]) -> list[tuple[int, ...]]:
    """The numbers of all processes, one after another."""
    world_size = sum(size for _, _, size in agents)
    processes = []
    for group_rank, (_, _, size) in enumerate(sorted(agents)):
        for local_rank in range(size):
            processes.append((len(processes), local_rank, group_rank, world_size))
    return processes


def compare(title: str, agents: list[tuple[str, int, int]], answer: object) -> None:
    """Raise ``Wrong`` unless ``answer`` lists the processes of these agents."""
    if not isinstance(answer, list):
        raise Wrong(f"all_ranks returned a {type(answer).__name__}, expected a list of tuples")
    for index, entry in enumerate(answer):
        if not isinstance(entry, tuple):
            raise Wrong(f"all_ranks returned a list of {type(entry).__name__}s, expected a list of tuples")
        if len(entry) != len(FIELDS):
            raise Wrong(f"{title}: entry {index} holds {len(entry)} values, expected {', '.join(FIELDS)}")
        for name, number in zip(FIELDS, entry, strict=True):
            if isinstance(number, bool) or not isinstance(number, Integral):
                kind = type(number).__name__
                raise Wrong(f"{title}: entry {index} has {name} {number!r}, a {kind}; expected an int")
    expected = by_counting(agents)
    if len(answer) != len(expected):
        raise Wrong(f"{title}: {len(answer)} processes are listed, expected {len(expected)}")
    for index, (entry, right) in enumerate(zip(answer, expected, strict=True)):
        for name, number, wanted in zip(FIELDS, entry, right, strict=True):
            if number != wanted:
                raise Wrong(f"{title}: entry {index} has {name} {number}, expected {wanted}")


def verify(answer: ModuleType, group: Group) -> str:
    for title, agents in CLUSTERS.items():
        compare(title, agents, answer.all_ranks(list(agents)))
    here = [("localhost", os.getppid(), group.world_size)]
    alone = answer.all_ranks(list(here))
    compare("this run", here, alone)
    told = tuple(int(os.environ[name]) for name in VARIABLES)
    if tuple(alone[group.rank]) != told:
        raise Wrong(f"torchrun gave this process {told}, all_ranks gives it {alone[group.rank]}")
    count = sum(agent[2] for agents in CLUSTERS.values() for agent in agents)
    return (
        f"{count} processes of {len(CLUSTERS)} clusters, and the {group.world_size} of this run. Well done."
    )


if __name__ == "__main__":
    check_exercise("01_ranks", verify)
