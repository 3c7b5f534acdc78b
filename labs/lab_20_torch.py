"""torch's context parallel API of 2026, on a CPU: layouts, gathered keys, packed documents.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_20_torch.py
Written by:  notebooks/20_context_parallel.ipynb (edit it there)

The keys are gathered as for FlexAttention. That kernel has no backward on a CPU, and its block masks are
compiled, so attention itself is torch's usual one here, under a mask.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from lab_20_ring import NAMES, attention_alone, part_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _attention as new
from torch.distributed.tensor.experimental._context_parallel import _load_balancer as layouts
from torch.distributed.tensor.parallel import parallelize_module

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    batch: int = 2
    heads: int = 4
    chunk: int = 8  # positions; a document has one or two times 2N chunks
    head_width: int = 16
    tolerance: float = 1e-12


class Attention(nn.Module):
    """What _ContextParallel wraps: its hook puts all ranks' keys and values in place of this rank's."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def order_of(balancer: layouts._LoadBalancer | None, length: int) -> torch.Tensor:
    """The positions of the sequence as the ranks hold them, one rank after the other."""
    return torch.arange(length) if balancer is None else balancer._generate_indices().flatten()


def compare(
    name: str,
    balancer: layouts._LoadBalancer | None,
    documents: torch.Tensor,
    sequence: torch.Tensor,
    mesh: DeviceMesh,
    cfg: Config,
) -> None:
    """Attention and its gradients in this layout, beside one process."""
    *qkv, gradient = sequence
    expected = attention_alone(qkv, gradient, documents)
    order = order_of(balancer, len(documents))
    own = order.chunk(mesh.size())[mesh.get_local_rank()]
    seen = (own.unsqueeze(-1) >= order) & (documents[own].unsqueeze(-1) == documents[order])
    parts = new._context_parallel_shard(mesh, [tensor.clone() for tensor in sequence], [2] * 4, balancer)
    leaves = [part.detach().clone().requires_grad_() for part in parts[:3]]
    style = new._ContextParallel(seq_dim=2, attention_type=new._ContextParallel.AttentionType.FLEX)
    attention = parallelize_module(Attention(), mesh, style)
    out = attention(*leaves, seen)
    out.backward(parts[3])
    results = [out.detach(), *(leaf.grad for leaf in leaves)]
    for what, ours, whole in zip(NAMES, results, expected, strict=True):
        assert_equal(f"{name}: {what}", ours, whole[..., own, :], cfg.tolerance)
    pairs = seen.sum().item()
    everyone = seen.new_empty(mesh.size(), dtype=torch.int64)
    torch.distributed.all_gather_into_tensor(everyone, torch.tensor([pairs]))
    told = ", ".join(f"{count / everyone.sum():.0%}" for count in everyone)
    print_on_rank_0(f"{name}: equal to one process; work of the ranks: {told}")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        short = 2 * group.world_size * cfg.chunk
        lengths = [short, 2 * short, short]
        length = sum(lengths)
        documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        size = (4, cfg.batch, cfg.heads, length, cfg.head_width)
        sequence = torch.randn(size, dtype=torch.float64, device=group.device)
        broadcast_from_rank_0([sequence])
        whole = layouts._HeadTailLoadBalancer(length, group.world_size, "cpu")
        of_each = layouts._PerDocumentHeadTailLoadBalancer([lengths], group.world_size, "cpu")

        own = order_of(whole, length).chunk(group.world_size)[group.rank]
        if not torch.equal(own, part_of(torch.arange(length), 0)):
            raise CourseError("torch's head-tail layout is not our zigzag")
        parts = [part_of(piece, 0) for piece in torch.arange(length).split(lengths)]
        own = order_of(of_each, length).chunk(group.world_size)[group.rank]
        if not torch.equal(own.sort().values, torch.cat(parts).sort().values):
            raise CourseError("torch's layout of documents is not a zigzag of each")
        print_on_rank_0("head-tail is our zigzag; per document, it is a zigzag of each document")

        nobody = torch.zeros_like(documents)  # one document
        compare("default, one document", None, nobody, sequence, mesh, cfg)
        compare("head-tail, one document", whole, nobody, sequence, mesh, cfg)
        compare("head-tail, three documents", whole, documents, sequence, mesh, cfg)
        compare("per document, three documents", of_each, documents, sequence, mesh, cfg)


if __name__ == "__main__":
    run(main, Config())
