"""GPUs and the network between them."""

import math
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """What a data sheet says.

    Attributes:
        peak: operations a second in bfloat16, dense.
        memory: bytes.
        link: bytes a second that a GPU sends to the others of its node, in one direction.
    """

    name: str
    peak: float
    memory: int
    link: float


# The makers' data sheets. An "80 GB" GPU has about 80 GiB; some of it is not for tensors.
GPUS = {
    "a100-40": Gpu("A100 40GB", 312e12, 40 * GIB, 300e9),
    "a100": Gpu("A100 80GB", 312e12, 80 * GIB, 300e9),
    "h100": Gpu("H100 80GB", 989e12, 80 * GIB, 450e9),
    "h800": Gpu("H800 80GB", 989e12, 80 * GIB, 200e9),
    "tpu-v4": Gpu("TPU v4", 275e12, 32 * GIB, 300e9),
}


@dataclass(frozen=True)
class Network:
    """Two levels: nodes of some GPUs with fast links, and a network card for each GPU between nodes.

    Attributes:
        node: GPUs in a node.
        card: bytes a second that a GPU sends to another node; 50e9 is 400 Gb/s.
        reached: the share of a link's bandwidth that a large collective gets.
        start_inside, start_between: seconds before the first byte arrives.
    """

    node: int = 8
    card: float = 50e9
    reached: float = 0.8
    start_inside: float = 3e-6
    start_between: float = 15e-6


# {collective: bytes that each of n ranks has to send, for each byte that it hands in}
BY_RULE = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send": lambda n: 1,
}


def by_rule(op: str, size: int, handed_in: float) -> float:
    """Bytes that each of ``size`` ranks sends on average, in the way that sends least (lesson 05)."""
    return BY_RULE[op](size) * handed_in if size > 1 else 0.0


def seconds(op: str, size: int, step: int, calls: int, handed_in: float, gpu: Gpu, network: Network) -> float:
    """Time of ``calls`` collectives in a group of ``size`` ranks that are ``step`` apart.

    Ranks of one node first work on the whole inside of it, then each talks to those that have the same place
    in other nodes, about its own part. ``handed_in`` is the sum over all calls.
    """
    if size == 1 or calls == 0:
        return 0.0
    inside = max(1, min(size, network.node // step))
    outside = math.ceil(size / inside)
    if op == "send":
        link = gpu.link if step < network.node else network.card
        start = network.start_inside if step < network.node else network.start_between
        return calls * start + handed_in / (link * network.reached)
    if op == "all_gather":  # of what comes from outside, each rank passes on its part
        bytes_outside = by_rule(op, outside, handed_in)
        bytes_inside = by_rule(op, inside, handed_in * outside)
    elif op == "all_to_all":
        bytes_outside = handed_in * (size - inside) / size
        bytes_inside = handed_in * (inside - 1) / size
    else:
        bytes_outside = by_rule(op, outside, handed_in / inside)
        bytes_inside = by_rule(op, inside, handed_in)
    time = bytes_inside / (gpu.link * network.reached) + bytes_outside / (network.card * network.reached)
    starts = math.ceil(math.log2(inside)) * network.start_inside
    starts += math.ceil(math.log2(outside)) * network.start_between
    return time + calls * starts
