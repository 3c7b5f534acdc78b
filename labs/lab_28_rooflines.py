"""When does communication decide? FSDP, tensor and expert parallelism on one node of 8 GPUs and on many.

Run it:      python labs/lab_28_rooflines.py
Written by:  notebooks/28_plan_a_cluster.ipynb (edit it there)
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Nodes of H100s, and what large operations reach: operations and bytes a second of a GPU."""

    flops: float = 0.73 * 989e12
    link: float = 0.8 * 450e9  # NVLink, to the others of its node
    card: float = 0.8 * 50e9  # its network card, to other nodes
    node: int = 8


def all_gather(size: float, ranks: int, near: int, machine: Machine) -> float:
    """Seconds until all ranks have the same ``size`` bytes; ``near`` of them share a node.

    Each card of a node brings in its part of what comes from outside, and NVLink hands it to the others. A
    reduce-scatter is the same backwards, an all-reduce is both.
    """
    nodes = ranks / near
    inside = size * (near - 1) / near / machine.link
    between = size * (nodes - 1) / nodes / (near * machine.card)
    return max(inside, between)


def all_to_all(size: float, ranks: int, near: int, machine: Machine) -> float:
    """Seconds in which each rank sends ``size`` bytes, another part of them to each rank.

    What a GPU gets is for it alone, so it all comes through its own card.
    """
    inside = size * (near - 1) / ranks / machine.link
    between = size * (ranks - near) / ranks / machine.card
    return max(inside, between)


def of_fsdp(tokens: float, ranks: int, machine: Machine) -> float:
    """Seconds of communication for each second of computing, with so many tokens on a GPU at once."""
    near = min(ranks, machine.node)
    moved = all_gather(2 + 2 + 4, ranks, near, machine)  # a parameter, twice, and its gradient
    return moved / (6 * tokens / machine.flops)


def of_tp(width: int, block: int, tp: int, machine: Machine) -> float:
    """The same for a block of so many parameters; the tokens cancel."""
    near = min(tp, machine.node)
    moved = 10 * all_gather(2 * width, tp, near, machine)
    return moved / (6 * block / tp / machine.flops)


def of_experts(width: int, ranks: int, machine: Machine) -> float:
    """The same for experts of three matrices that are so wide."""
    near = min(ranks, machine.node)
    moved = 4 * all_to_all(2, ranks, near, machine)  # to the expert and back, forward and backward
    return moved / (18 * width / machine.flops)


def main(machine: Machine) -> None:
    print("nodes    FSDP: tokens on a GPU    EP: width of an expert")
    for nodes in (1, 2, 16, 256):
        ranks = nodes * machine.node
        print(f"{nodes:5} {of_fsdp(1, ranks, machine):24,.0f} {of_experts(1, ranks, machine):25,.0f}")


if __name__ == "__main__":
    main(Machine())
