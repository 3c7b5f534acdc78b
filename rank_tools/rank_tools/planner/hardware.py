"""GPUs, what of them matrix products reach, and the network between them."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import PlanError

GIB = 2**30


class Gpu(NamedTuple):
    """What a data sheet says, and what others have measured on one of them.

    Attributes:
        peak: operations a second in bfloat16, dense; ``peak8`` in FP8, 0 without.
        memory: bytes; ``bandwidth`` bytes a second between the GPU and it.
        link: bytes a second that a GPU sends to the others of its node, in one direction.
        units: streaming multiprocessors, or compute units.
        gemm, gemm8: the shares of ``peak`` and ``peak8`` that large matrix products get for long.
        attention: those that FlashAttention 1, 2 and 3 get on long sequences.
    """

    name: str
    peak: float
    peak8: float
    memory: float
    bandwidth: float
    link: float
    units: int
    gemm: float
    gemm8: float = 0.0
    attention: tuple[float, float, float] = (0.33, 0.6, 0.6)


HOPPER = (0.17, 0.34, 0.57)
BLACKWELL = (0.1, 0.2, 0.5)
# Forward at 2,048 tokens, causal: 65.9 and 107.8 of 148 TFLOP/s (Dao-AILab/flash-attention, issue 1310)
H20 = (0.3, 0.45, 0.7)
# Up to units: the makers' data sheets. An "80 GB" GPU has about 80 GiB. GEMMs: the best shapes that
# stas00/ml-engineering lists (A100 0.87, H100 0.80, B200 0.78, MI300X 0.51; FP8: H100 0.71, B200 0.76) less
# what power and other shapes take, which calibrated rows set. Attention: Dao-AILab/flash-attention's
# figures, causal, forward and backward. Peaks of B200, MI355X, H20: torchtitan/tools/utils.py at
# b5bcd76. MI355X: 256 units and 288 GiB in ROCm's table of GPUs; 7 Infinity Fabric links of 76.8 GB/s each
# way. What GEMMs get on MI355X and H20 is not known here: they have the shares of MI300X and H100.
GPUS = {
    "v100": Gpu("V100 32GB", 125e12, 0, 32 * GIB, 0.9e12, 150e9, 80, 0.75, 0, (0.3, 0.3, 0.3)),
    "a100-40": Gpu("A100 40GB", 312e12, 0, 40 * GIB, 1.55e12, 300e9, 108, 0.82),
    "a100": Gpu("A100 80GB", 312e12, 0, 80 * GIB, 2.04e12, 300e9, 108, 0.82),
    "h100": Gpu("H100 80GB", 989e12, 1979e12, 80 * GIB, 3.35e12, 450e9, 132, 0.73, 0.65, HOPPER),
    "h100-500w": Gpu(
        "H100 96GB", 989e12, 1979e12, 95 * GIB, 2.4e12, 450e9, 132, 0.6, 0.52, (0.13, 0.25, 0.42)
    ),
    "h100-pcie": Gpu("H100 PCIe", 756e12, 1513e12, 80 * GIB, 2.0e12, 64e9, 114, 0.6, 0.52, HOPPER),
    "h100-nvl": Gpu("H100 NVL", 835e12, 1671e12, 94 * GIB, 3.9e12, 64e9, 132, 0.65, 0.57, HOPPER),
    "h800": Gpu("H800 80GB", 989e12, 1979e12, 80 * GIB, 3.35e12, 200e9, 132, 0.73, 0.65, HOPPER),
    "h200": Gpu("H200", 989e12, 1979e12, 141 * GIB, 4.8e12, 450e9, 132, 0.73, 0.65, HOPPER),
    "b200": Gpu("B200", 2250e12, 4500e12, 180 * GIB, 7.7e12, 900e9, 148, 0.6, 0.55, BLACKWELL),
    "gb200": Gpu("GB200", 2450e12, 4900e12, 186 * GIB, 8e12, 900e9, 148, 0.58, 0.54, BLACKWELL),
    "b300": Gpu("B300", 2250e12, 4500e12, 270 * GIB, 8e12, 900e9, 148, 0.66, 0.64, BLACKWELL),
    "gb300": Gpu("GB300", 2450e12, 4900e12, 278 * GIB, 8e12, 900e9, 148, 0.66, 0.64, BLACKWELL),
    "h20": Gpu("H20", 148e12, 296e12, 95 * GIB, 4e12, 450e9, 78, 0.73, 0.65, H20),
    "mi355x": Gpu("MI355X", 2500e12, 5000e12, 288 * GIB, 8e12, 537e9, 256, 0.47, 0.38, (0.1, 0.3, 0.35)),
    "mi300x": Gpu("MI300X", 1307e12, 2614e12, 192 * GIB, 5.3e12, 400e9, 304, 0.47, 0.38, (0.1, 0.3, 0.35)),
}


def gpu_named(name: str, measured: dict[str, Any] | None = None) -> Gpu:
    """A GPU of the table, with what is given of it changed. Raises PlanError: there is none of that name."""
    if name.lower() not in GPUS:
        raise PlanError(f"there is no GPU {name!r}: {', '.join(GPUS)}")
    return GPUS[name.lower()]._replace(**(measured or {}))


@dataclass(frozen=True)
class Network:
    """Two levels: nodes (or NVLink domains) of GPUs with fast links, and a network card for each GPU.

    Attributes:
        card: bytes a second that a GPU sends to another node; 50e9 is 400 Gb/s.
        reached: the share of a link's bandwidth that a large collective gets.
        start_inside, start_between: seconds before the first byte arrives; each doubling of the ranks of a
            node, or of nodes, adds one.
        hop_inside, hop_between: seconds of a step of a ring. An all-gather or reduce-scatter over nodes goes
            round one ring of all ranks, so its start grows with their number (nccl's own constants for the
            protocol Simple: NVIDIA/nccl at 01afd20, src/graph/tuning.cc, ``hwLat``; nccl has no tree for
            them). 7 GPUs of a node pass on by NVLink for each that crosses.
    """

    node: int = 8
    card: float = 50e9
    reached: float = 0.8
    start_inside: float = 8e-6
    start_between: float = 20e-6
    hop_inside: float = 3.4e-6
    hop_between: float = 9.6e-6

    def start(self, op: str, size: int, inside: int) -> float:
        """Seconds before a collective of ``size`` ranks, ``inside`` of them in a node, moves its bytes."""
        outside = math.ceil(size / inside)
        by_trees = math.log2(max(2, inside)) * self.start_inside + math.log2(outside) * self.start_between
        if outside == 1 or op not in ("all_gather", "reduce_scatter"):
            return by_trees
        return max(by_trees, (size - outside) * self.hop_inside + (outside - 1) * self.hop_between)


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


def seconds(
    op: str, size: int, inside: int, calls: float, handed_in: float, gpu: Gpu, network: Network
) -> float:
    """Time of ``calls`` collectives in a group of ``size`` ranks, of which ``inside`` are in one node.

    Ranks of one node work inside of it while each talks to those that have the same place in other nodes,
    about its own part: the slower of both decides. ``handed_in`` is the sum over all calls.
    """
    if size == 1 or calls == 0:
        return 0.0
    inside = max(1, min(size, inside))
    outside = math.ceil(size / inside)
    if op == "send":
        within, beyond = (handed_in, 0.0) if inside > 1 else (0.0, handed_in)
    elif op == "all_to_all":
        within, beyond = handed_in * (inside - 1) / size, handed_in * (size - inside) / size
    elif op == "all_gather":  # of what comes from outside, each rank passes on its part
        within, beyond = by_rule(op, inside, handed_in * outside), by_rule(op, outside, handed_in)
    else:
        within, beyond = by_rule(op, inside, handed_in), by_rule(op, outside, handed_in / inside)
    starts = calls * network.start(op, size, inside)
    return max(within / gpu.link, beyond / network.card) / network.reached + starts


class Threshold(NamedTuple):
    """From how many tokens of a micro-batch on a GPU FSDP's bytes hide: C / W by bytes, and by its starts.

    Attributes:
        compute: C, operations a second that matrix products reach.
        wire: W, bytes a second at which a whole parameter reaches a GPU.
        by_bytes: 8 / 6 x C / W. A parameter is gathered twice in two bytes and its gradient reduced in four;
            a token costs six operations of it.
        by_starts: 3 starts of a block's collectives x C / (6 x its parameters), on top.
    """

    compute: float
    wire: float
    by_bytes: float
    by_starts: float

    @property
    def tokens(self) -> float:
        return self.by_bytes + self.by_starts


def fsdp_hides_from(block: float, ranks: int, gpu: Gpu, network: Network) -> Threshold:
    """For a block of so many parameters, sharded over ``ranks``. On one rank nothing is sent: 0 tokens.

    The book How to Scale Your Model has C / W for gradients in bfloat16 and nothing lost: 990e12 / 400e9 =
    2,475 on H100, 2250e12 / 400e9 = 5,625 on B200.
    """
    compute = gpu.peak * gpu.gemm
    if ranks == 1:
        return Threshold(compute, math.inf, 0.0, 0.0)
    inside = min(ranks, network.node)
    outside = math.ceil(ranks / inside)
    within = gpu.link * inside / (inside - 1) if inside > 1 else math.inf
    beyond = inside * network.card * outside / (outside - 1) if outside > 1 else math.inf
    wire = min(within, beyond) * network.reached
    starts = 3 * network.start("all_gather", ranks, inside)
    return Threshold(compute, wire, 8 / 6 * compute / wire, starts * compute / (6 * block))
