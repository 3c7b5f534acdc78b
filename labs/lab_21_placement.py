"""Which GPU gets which experts: the example of DeepSeek's EPLB, worked out again by a greedy of our own.

Run it:      python labs/lab_21_placement.py
Written by:  notebooks/21_expert_parallel.ipynb
"""

import itertools
import math
from dataclasses import dataclass, field

from shared.runtime.errors import CourseError
from shared.runtime.run import run

# deepseek-ai/EPLB, README.md: tokens for each of 12 experts of two layers, and the plan that it prints.
LOADS = (
    (90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86),
    (20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27),
)
PUBLISHED = (
    (5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1),
    (7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1),
)
REPLICAS = 16
GROUPS = 4  # a token's experts come from few groups, so a group stays on one node
NODES = 2
GPUS = 8


@dataclass
class Pack:
    """What is put together, with the sum of its loads."""

    load: float = 0.0
    items: list[int] = field(default_factory=list)


def packed(loads: list[float], packs: int) -> list[list[int]]:
    """Numbers of items for each pack, as many in each: the heaviest first, each into the lightest pack."""
    room = len(loads) // packs
    made = [Pack() for _ in range(packs)]
    for item in sorted(range(len(loads)), key=lambda item: -loads[item]):
        lightest = min((pack for pack in made if len(pack.items) < room), key=lambda pack: pack.load)
        lightest.items.append(item)
        lightest.load += loads[item]
    return [pack.items for pack in made]


def replicated(loads: list[float], copies: int) -> list[int]:
    """The expert of each of ``copies`` replicas: one more for whoever has the most tokens per replica."""
    replicas = list(range(len(loads)))
    while len(replicas) < copies:
        busiest = max(range(len(loads)), key=lambda expert: loads[expert] / replicas.count(expert))
        replicas.append(busiest)
    return replicas


def placed(loads: tuple[int, ...]) -> list[list[int]]:
    """The experts of each GPU: groups to nodes, then replicas within the node, then these to its GPUs."""
    size = len(loads) // GROUPS
    of_group = [sum(loads[group * size : (group + 1) * size]) for group in range(GROUPS)]
    gpus = []
    for groups in packed(of_group, NODES):
        experts = [group * size + place for group in groups for place in range(size)]
        replicas = replicated([loads[expert] for expert in experts], REPLICAS // NODES)
        each = [loads[experts[one]] / replicas.count(one) for one in replicas]
        for items in packed(each, GPUS // NODES):
            gpus.append([experts[replicas[item]] for item in items])
    return gpus


def load_of(gpus: list[list[int]], loads: tuple[int, ...]) -> list[float]:
    """Tokens for each GPU, if those of an expert are dealt out evenly to its replicas."""
    everywhere = [expert for gpu in gpus for expert in gpu]
    return [sum(loads[expert] / everywhere.count(expert) for expert in gpu) for gpu in gpus]


def imbalance(loads: list[float]) -> float:
    """The highest load as a multiple of the mean: 1 is the best. All wait for the highest."""
    return max(loads) / (sum(loads) / len(loads))


def dealt_out(replicas: list[int]) -> list[list[int]]:
    """Replicas in order, as evenly as it goes: 12 of them to 8 GPUs by 2 and 1 in turn."""
    starts = [math.ceil(gpu * len(replicas) / GPUS) for gpu in range(GPUS + 1)]
    return [replicas[start:end] for start, end in itertools.pairwise(starts)]


def main() -> None:
    for layer, (loads, published) in enumerate(zip(LOADS, PUBLISHED, strict=True)):
        ours = placed(loads)
        if [expert for gpu in ours for expert in gpu] != list(published):
            raise CourseError(f"layer {layer}: {ours} is not the published plan")
        ways = {
            "12 experts in order": dealt_out(list(range(len(loads)))),
            "16 replicas in order": dealt_out(sorted(published)),
            "EPLB": ours,
        }
        found = {name: f"{imbalance(load_of(gpus, loads)):.3f}" for name, gpus in ways.items()}
        if layer == 0 and list(found.values()) != ["1.851", "1.375", "1.208"]:
            raise CourseError(f"highest load over mean: {found}")
        print(f"layer {layer}, highest load over mean: {', '.join(' '.join(one) for one in found.items())}")
        print(f"  the busiest expert alone: {GPUS * max(loads) / sum(loads):.3f}")
        print(f"  experts of each GPU, as published: {ours}")


if __name__ == "__main__":
    run(main)
