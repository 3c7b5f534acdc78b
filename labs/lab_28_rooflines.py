"""When does communication decide? FSDP, tensor and expert parallelism on one node of 8 GPUs and on many.

Run it:      python labs/lab_28_rooflines.py
Written by:  notebooks/28_plan_a_cluster.ipynb (edit it there)
"""

from dataclasses import dataclass, replace

BLOCKS = {"8B": 218e6, "405B": 3188e6}  # parameters of a block of Llama 3


@dataclass(frozen=True)
class Machine:
    """Nodes of H100s: operations and bytes a second that large operations reach, and latencies.

    A step of a ring takes ``hop_inside`` over NVLink and ``hop_between`` over the network. Both are constants
    of an nccl older than Hopper (NVIDIA/nccl at 01afd20, src/graph/tuning.cc, ring, protocol Simple).
    """

    flops: float = 0.73 * 989e12
    link: float = 0.8 * 450e9  # NVLink, to the others of its node
    card: float = 0.8 * 50e9  # its network card, to other nodes: 400 Gb/s
    node: int = 8
    hop_inside: float = 3.4e-6
    hop_between: float = 9.6e-6


H100 = Machine()
SLOW = replace(H100, card=0.8 * 12.5e9)  # 100 Gb/s a GPU


def nodes_of(ranks: int, near: int) -> int:
    if ranks % near:
        raise ValueError(f"{ranks} ranks do not fill nodes of {near}")
    return ranks // near


def all_gather(size: float, ranks: int, near: int, machine: Machine) -> float:
    """Seconds until all ranks have the same ``size`` bytes; ``near`` of them share a node.

    Each card of a node brings in its part of what comes from outside, and NVLink hands it to the others. A
    reduce-scatter is the same backwards, an all-reduce is both.
    """
    nodes = nodes_of(ranks, near)
    inside = size * (near - 1) / near / machine.link
    between = size * (nodes - 1) / nodes / (near * machine.card)
    return max(inside, between)


def latency(ranks: int, near: int, machine: Machine) -> float:
    """Seconds of an all-gather, however few its bytes: the last pass every hop of a ring of all ranks."""
    nodes = nodes_of(ranks, near)
    return (ranks - nodes) * machine.hop_inside + (nodes - 1) * machine.hop_between


def all_to_all(size: float, ranks: int, near: int, machine: Machine) -> float:
    """Seconds in which each rank sends ``size`` bytes, another part of them to each rank.

    What a GPU gets is for it alone, so it all comes through its own card.
    """
    inside = size * (near - 1) / ranks / machine.link
    between = size * (ranks - near) / ranks / machine.card
    return max(inside, between)


def of_fsdp(tokens: float, ranks: int, machine: Machine, block: float = float("inf")) -> float:
    """Seconds of communication for each second of computing, with so many tokens on a GPU at once.

    ``block`` is the number of parameters that are gathered together; with many, latency does not count.
    """
    near = min(ranks, machine.node)
    moved = all_gather(2 + 2 + 4, ranks, near, machine)  # a parameter, twice, and its gradient
    waited = 3 * latency(ranks, near, machine) / block
    return (moved + waited) / (6 * tokens / machine.flops)


def of_tp(width: int, block: int, tp: int, machine: Machine) -> float:
    """The same for a block of so many parameters; the tokens cancel."""
    near = min(tp, machine.node)
    moved = 8 * all_gather(2 * width, tp, near, machine)
    return moved / (6 * block / tp / machine.flops)


def of_experts(width: int, ranks: int, machine: Machine) -> float:
    """The same for experts of three matrices that are so wide."""
    near = min(ranks, machine.node)
    moved = 4 * all_to_all(2, ranks, near, machine)  # to the expert and back, forward and backward
    return moved / (18 * width / machine.flops)


def check_with_the_book() -> None:
    """How to Scale Your Model, chapter GPUs: C / W = 990e12 / 400e9 tokens, with gradients in bfloat16."""
    nothing_lost = Machine(flops=990e12, link=450e9, card=50e9)
    tokens = of_fsdp(1, 2048, nothing_lost) * 6 / 8
    assert abs(tokens / 2475 - 1) < 0.01, f"FSDP needs {tokens:,.0f} tokens, the book has 2,475"


def main() -> None:
    check_with_the_book()
    print("         FSDP: tokens on a GPU that balance a whole step      EP: width of an expert")
    print("         by bytes             with latency, 400 Gb/s")
    print("nodes    400 Gb/s  100 Gb/s   8B's block  405B's block        400 Gb/s  100 Gb/s")
    for nodes in (1, 2, 16, 64, 256):
        ranks = nodes * H100.node
        cells = [
            of_fsdp(1, ranks, H100),
            of_fsdp(1, ranks, SLOW),
            of_fsdp(1, ranks, H100, BLOCKS["8B"]),
            of_fsdp(1, ranks, H100, BLOCKS["405B"]),
            of_experts(1, ranks, H100),
            of_experts(1, ranks, SLOW),
        ]
        print(f"{nodes:5} {cells[0]:11,.0f} {cells[1]:9,.0f} {cells[2]:12,.0f} {cells[3]:13,.0f}", end="")
        print(f" {cells[4]:15,.0f} {cells[5]:9,.0f}")


if __name__ == "__main__":
    main()
