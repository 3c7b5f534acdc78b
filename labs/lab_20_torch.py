"""torch's own context parallelism on a CPU: what works, and what it says where it does not.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_20_torch.py
Written by:  notebooks/20_context_parallel.ipynb
"""

import os
from dataclasses import dataclass

import lab_20_ways as ways
import torch
import torch.nn.functional as F
from lab_20_ring import part_of
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as torchs
from torch.distributed.tensor.experimental._context_parallel import _load_balancer as layouts
from torch.nn.attention import SDPBackend, sdpa_kernel

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

Tensors = list[torch.Tensor]

# {name: (backend, causal, words that must be in what it says)}
THROUGH_THE_CONTEXT = {
    "math, not causal": (SDPBackend.MATH, False, "equal"),
    "math, causal": (SDPBackend.MATH, True, "got mixed torch.Tensor and DTensor"),
    "flash, causal": (SDPBackend.FLASH_ATTENTION, True, "sharding strategy"),
}


@dataclass(frozen=True)
class Config:
    batch: int = 2
    heads: int = 4
    chunk: int = 8  # positions; the sequence has 2N chunks
    head_width: int = 16
    tolerance: float = 1e-12


def alone(sequence: torch.Tensor, causal: bool) -> Tensors:
    """Output and gradients of q, k and v on one process, (batch, heads, length, head width) each."""
    *qkv, gradient = sequence
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]
    out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    out.backward(gradient)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def through_the_context(
    mesh: DeviceMesh, backend: SDPBackend, causal: bool, sequence: torch.Tensor
) -> tuple[Tensors, CommRecord]:
    """The same by ``context_parallel``, put together again, and what attention communicates."""
    q, k, v, gradient = (tensor.clone() for tensor in sequence)
    buffers = [q, k, v, gradient]  # the context leaves in them what this rank has of them
    with (
        sdpa_kernel(backend),
        context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)),
    ):
        leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
        with record() as log:
            out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
            out.backward(gradient)
        parts = [out.detach(), *(leaf.grad for leaf in leaves)]
        return torchs.context_parallel_unshard(mesh, parts, [2] * 4), log


def outcome(mesh: DeviceMesh, backend: SDPBackend, causal: bool, sequence: torch.Tensor, cfg: Config) -> str:
    """The difference from one process with the collectives, or the first line of the error."""
    try:
        found, log = through_the_context(mesh, backend, causal, sequence)
    except (RuntimeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    expected = alone(sequence, causal)
    largest = max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))
    calls = ways.in_words(dict(log.counts()))
    return f"equal to one process; {calls}" if largest <= cfg.tolerance else f"differs; {calls}"


def check_layout(length: int, mesh: DeviceMesh) -> None:
    """torch's balanced layout is the zigzag, where 2N divides the length; elsewhere it is switched off."""
    n = mesh.size()
    order = layouts._HeadTailLoadBalancer(length, n, "cpu")._generate_indices().flatten()
    if not torch.equal(order.chunk(n)[mesh.get_local_rank()], part_of(torch.arange(length), 0)):
        raise CourseError("torch's HeadTailLoadBalancer does not cut as part_of does")
    print_on_rank_0(f"torch's layout of {length} positions is our zigzag")
    balancer = layouts._create_default_load_balancer(length + n, n, "cpu")
    if balancer is not None:
        raise CourseError("torch balances a sequence that 2N does not divide")
    print_on_rank_0(f"of {length + n} positions: in order, without a word")


def check_defaults() -> None:
    """How keys come to all ranks, and in which dtype results are merged."""
    options = torchs._cp_options
    if options.rotate_method != torchs._RotateMethod.ALL_GATHER or not options.convert_to_f32:
        raise CourseError(f"torch's defaults are other ones: {options}")
    print_on_rank_0("by default keys are gathered, and results are merged in float32")


def main(cfg: Config) -> None:
    os.environ["RANK_BY_RANK_DEVICE"] = "cpu"  # on GPUs torch takes other kernels
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        length = 2 * group.world_size * cfg.chunk
        size = (4, cfg.batch, cfg.heads, length, cfg.head_width)
        sequence = torch.randn(size, dtype=torch.float64, device=group.device)
        broadcast_from_rank_0([sequence])
        for name, (backend, causal, words) in THROUGH_THE_CONTEXT.items():
            said = outcome(mesh, backend, causal, sequence, cfg)
            print_on_rank_0(f"context_parallel, {name}: {said}")
            if words not in said:
                raise CourseError(f"{name}: {said!r} is not what this lab shows")
        check_layout(length, mesh)
        check_defaults()


if __name__ == "__main__":
    run(main, Config())
