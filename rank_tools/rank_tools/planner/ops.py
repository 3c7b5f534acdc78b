"""Seconds of a block's operations on one GPU: a roofline for each.

A matrix product is cut into tiles, and the tiles go to the GPU's units in waves: the last wave costs as much
as a full one, and a tile has an overhead worth K_EXTRA steps of its inner loop. With this, and 0.78 of the
peak, the 183 products that SimuMax measured on an A100 PCIe come out to 4 % on average
(MooreThreads/SimuMax, configs/system/a100_pcie.json). Norms, rotary positions, activation functions and the
loss take as long as their bytes need.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from .flops import BY_OP, SELECTIVE, WHOLE
from .hardware import Gpu
from .layout import RING, Layout
from .stack import KERNELS, UNFUSED
from .transformer import Model

TILES = ((256, 128), (128, 256), (128, 128))
SMALL_TILE = 0.9  # the speed that the smallest of these reaches
K_EXTRA = 128
STREAMED = 0.85  # the share of the bandwidth that elementwise kernels get
LAUNCH_S = 4e-6
ACCUMULATED = 0.4  # how much of reading and writing summed gradients no computing hides
OF_GROUPS = (
    200  # rows of an expert at which its products have half of their speed (SimuMax, b200_bf16_ceperm)
)
HALF_SPEED_AT = 500  # tokens at which attention has half of its speed: FlashAttention 2, figures 4 to 6


class Times(NamedTuple):
    """Seconds of a micro-batch; ``again`` is what is recomputed."""

    forward: float
    backward: float
    again: float = 0.0


def gemm(m: float, n: float, k: float, gpu: Gpu, speed: float, groups: int = 1) -> float:
    """Seconds of (m, k) x (k, n) at ``speed`` operations a second, or of so many at once."""
    best = math.inf
    for rows, columns in TILES:
        waves = math.ceil(groups * math.ceil(m / rows) * math.ceil(n / columns) / gpu.units)
        operations = waves * gpu.units * 2 * rows * columns * (k + K_EXTRA)
        best = min(best, operations / speed / (SMALL_TILE if rows == columns else 1.0))
    if groups > 1:
        best *= 1 + OF_GROUPS / min(m, n, k)
    return max(best, 2 * groups * (m * k + k * n + m * n) / gpu.bandwidth) + LAUNCH_S


def streamed(size: float, gpu: Gpu) -> float:
    return size / (gpu.bandwidth * STREAMED)


def linear(
    m: float, n: float, k: float, gpu: Gpu, layout: Layout, groups: int = 1, plain: bool = False
) -> Times:
    """A layer's forward pass, and its backward pass: the gradients of its input and of its weight."""
    eight = layout.stack.fp8 and gpu.peak8 and not plain
    library = layout.stack.library if gpu.peak8 else 1.0
    speed = (gpu.peak8 * gpu.gemm8 if eight else gpu.peak * gpu.gemm) * library
    forward = gemm(m, n, k, gpu, speed, groups)
    backward = gemm(m, k, n, gpu, speed, groups) + gemm(k, n, m, gpu, speed, groups)
    summed = ACCUMULATED if groups == 1 else 1.0
    backward += summed * 2 * layout.stack.numbers.gradient * groups * n * k / gpu.bandwidth
    if eight:  # to convert: read two bytes twice, and write one byte twice
        forward += streamed(groups * 6 * m * k, gpu)
        backward += streamed(groups * (6 * m * n + 2 * m * k), gpu)
    return Times(forward, backward)


def attention(tokens: float, model: Model, layout: Layout, gpu: Gpu) -> Times:
    """The scores, the softmax and the sum; a fused kernel leaves out what the causal mask hides."""
    width = model.attention_width() / layout.tp
    kernel = layout.stack.attention
    if kernel == UNFUSED:
        product = 4 * tokens * model.context * width / (gpu.peak * gpu.gemm * 0.8)
        passes = (10 if model.dropout else 8) * tokens * model.context * model.heads / layout.tp
        return Times(product + streamed(passes, gpu), 2 * product + streamed(1.6 * passes, gpu))
    length = model.context / (layout.cp if layout.context == RING else 1)
    share = gpu.attention[KERNELS.index(kernel)] * length / (length + HALF_SPEED_AT)
    if model.attention_width() / model.heads < 96:
        share *= 0.9
    forward = 2 * tokens * model.seen() * width / (gpu.peak * share)
    return Times(forward, 2.5 * forward)


def elementwise(tokens: float, model: Model, layout: Layout, gpu: Gpu, hidden: float) -> Times:
    """Norms, residuals, rotary positions and activation functions: numbers that are read and written.

    Without fusion an RMSNorm, a rotation and a gate are several kernels each, in float32.
    """
    fused, width = layout.stack.fused, model.width / layout.between
    norms = model.norms * width * (2 if fused or not model.gated else 8)
    residuals = model.norms * width * 3
    rotary = (0 if model.positions else model.queries + model.keys) / layout.tp * (2 if fused else 10)
    act = hidden * ((3 if fused else 5) if model.gated else 2)
    dropped = 4 * width if model.dropout else 0
    kernels = (8 if fused else 24) * LAUNCH_S
    forward = streamed(2 * tokens * (norms + residuals + rotary + act + dropped), gpu)
    backward = streamed(2 * tokens * (1.5 * norms + residuals + rotary + 1.7 * act + dropped), gpu)
    return Times(forward + kernels, backward + 1.5 * kernels)


@lru_cache(maxsize=8192)
def block(model: Model, layout: Layout, gpu: Gpu, experts: bool) -> Times:
    """A block for a micro-batch, on one rank of tensor and context parallelism."""
    tokens = layout.micro_batch * model.context / layout.cp
    layers = _attention_layers(tokens, model, layout, gpu)
    mlp, hidden = _mlp_layers(tokens, model, layout, gpu, experts)
    layers += mlp
    core = attention(tokens, model, layout, gpu)
    rest = elementwise(tokens, model, layout, gpu, hidden)
    products = sum(layer.forward for layer in layers)
    forward = products + core.forward + rest.forward
    backward = sum(layer.backward for layer in layers) + core.backward + rest.backward
    again = {WHOLE: forward, BY_OP: products / 2 + rest.forward}
    if layout.stack.attention == UNFUSED:
        again[SELECTIVE] = core.forward
    return Times(forward, backward, layout.recomputed * again.get(layout.recompute, 0.0))


def _attention_layers(tokens: float, model: Model, layout: Layout, gpu: Gpu) -> list[Times]:
    width, tp, latent = model.width, layout.tp, model.latent
    queries = model.queries / tp
    out = linear(tokens, width, model.values / tp, gpu, layout)
    if latent is not None:
        down = latent.query_rank + latent.key_rank + latent.rotary
        up = model.heads * (latent.plain + latent.value) / tp
        return [
            linear(tokens / layout.between, down, width, gpu, layout),
            linear(tokens, queries, latent.query_rank or width, gpu, layout),
            linear(tokens, up, latent.key_rank, gpu, layout),
            out,
        ]
    keys = max(model.keys / tp, model.head_width)
    if layout.stack.regather:  # Megatron has one matrix for all three
        return [linear(tokens, queries + 2 * keys, width, gpu, layout), out]
    key = linear(tokens, keys, width, gpu, layout)
    return [linear(tokens, queries, width, gpu, layout), key, key, out]


def _mlp_layers(
    tokens: float, model: Model, layout: Layout, gpu: Gpu, experts: bool
) -> tuple[list[Times], float]:
    """The products, and how many numbers of a token the activation function sees."""
    ups, width = 2 if model.gated else 1, model.width
    kinds = model.experts if experts else None
    dense = (model.hidden if kinds is None else kinds.shared * kinds.hidden) / layout.tp
    layers = []
    if dense:
        layers = [linear(tokens, ups * dense, width, gpu, layout), linear(tokens, width, dense, gpu, layout)]
    if kinds is None:
        return layers, dense
    local = max(1, kinds.routed // layout.ep)
    rows = tokens / layout.between * kinds.chosen * layout.etp / local  # of each expert, if all get alike
    hidden = kinds.hidden / layout.etp
    moved = streamed(16 * rows * local * width, gpu) + 10 * LAUNCH_S  # to sort rows, and back
    layers += [
        linear(rows, ups * hidden, width, gpu, layout, local),
        linear(rows, width, hidden, gpu, layout, local),
        linear(tokens / layout.between, kinds.routed, width, gpu, layout, plain=True),
        Times(moved, moved),
    ]
    return layers, rows * local / tokens * hidden + dense


def head(model: Model, layout: Layout, gpu: Gpu) -> Times:
    """The last layer and the loss, for a micro-batch; they are not recomputed, nor in FP8."""
    tokens = layout.micro_batch * model.context / layout.cp
    part = model.vocabulary / layout.tp
    times = linear(tokens, part, model.width, gpu, layout, plain=True)
    loss = streamed(tokens * part * (24 if layout.stack.fused else 40), gpu)  # bytes of a logit, both ways
    return Times(times.forward + 0.4 * loss, times.backward + 0.6 * loss)
