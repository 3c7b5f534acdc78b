"""torch's own context parallelism on a CPU: what works, what it says where it does not, and its ring.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_20_torch.py
Written by:  notebooks/20_context_parallel.ipynb
"""

import os
from dataclasses import dataclass

import lab_20_ways as ways
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_20_ring import part_of, ring_attention
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
from shared.runtime.results import record_results
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
    tolerance_float32: float = 1e-5


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


def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> Tensors:
    """The kernel that torch uses on a CPU. It returns a logsumexp, as those for GPUs do."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)


def flash_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    is_causal: bool,
) -> Tensors:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return kernel(grad_out, query, key, value, out, logsumexp, 0.0, is_causal)


def torchs_ring(sequence: torch.Tensor, method: str) -> tuple[Tensors, dict[str, CommRecord]]:
    """torch's loop over the ring with the CPU's kernel: this rank's output and gradients, and the calls."""
    q, k, v, gradient = (part_of(tensor, 2) for tensor in sequence)
    world = dist.group.WORLD
    torchs.set_rotate_method(method)
    with record() as forward:
        out, lse = torchs._templated_ring_attention(world, 2, flash_forward, q, k, v, is_causal=True)
    with record() as backward:
        gradients = torchs._templated_ring_attention_backward(
            world, 2, flash_backward, gradient, "grad_out", q, k, v, out, lse, is_causal=True
        )
    return [out, *gradients], {"forward": forward, "backward": backward}


def expected_of_torch(method: str, n: int, part: int) -> dict[str, tuple[dict[str, int], int]]:
    """{pass: (calls, bytes that a rank sends)}: gradients of keys and values go one hop more than ours."""
    if method == "allgather":
        keys = {"all_gather": 1}
    else:
        keys = {"all_to_all": n - 1}
    backward = dict(keys)
    backward["all_to_all"] = backward.get("all_to_all", 0) + n
    return {"forward": (keys, 2 * (n - 1) * part), "backward": (backward, 2 * (n - 1) * part + 2 * n * part)}


def compare_rings(sequence: torch.Tensor, cfg: Config) -> dict:
    """torch's ring, ours and one process are equal, and torch's sends what its source says."""
    n = dist.get_world_size()
    expected = [part_of(tensor, 2) for tensor in alone(sequence, causal=True)]
    found = {}
    for method in ("allgather", "alltoall"):
        for exact in (False, True):
            torchs._cp_options.convert_to_f32 = not exact
            results, logs = torchs_ring(sequence, method)
            largest = max((a - b).abs().max().item() for a, b in zip(results, expected, strict=True))
            name = f"torch's ring, {method}, merged in {'the dtype of q' if exact else 'float32'}"
            limit = cfg.tolerance if exact else cfg.tolerance_float32
            if largest > limit or (largest > cfg.tolerance) == exact:
                raise CourseError(
                    f"{name}: differs from one process by {largest:.0e}, expected <= {limit:.0e}"
                )
            print_on_rank_0(f"{name}: equal to one process to {limit:.0e}")
        calls = {which: (dict(log.counts()), round(log.by_rule())) for which, log in logs.items()}
        if calls != expected_of_torch(method, n, expected[2].nbytes):
            raise CourseError(
                f"{method}: {calls}, expected {expected_of_torch(method, n, expected[2].nbytes)}"
            )
        for which, (counts, sent) in calls.items():
            print_on_rank_0(f"  {which}: {ways.in_words(counts)}; a rank sends {sent:,} bytes")
        found[method] = sum(sent for _, sent in calls.values())
    torchs._cp_options.convert_to_f32 = True
    with record() as log:
        leaves = [part_of(tensor, 2).requires_grad_() for tensor in sequence[:3]]
        ring_attention(*leaves).backward(part_of(sequence[3], 2))
    found["ours"] = round(log.by_rule())
    print_on_rank_0(f"our ring: a rank sends {found['ours']:,} bytes forward and backward")
    return found


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
        record_results("lab_20_torch", compare_rings(sequence, cfg))


if __name__ == "__main__":
    run(main, Config())
