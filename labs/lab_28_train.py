"""Train a Llama on a mesh of FSDP, pipeline and tensor parallelism: the same code for 4 ranks and for 16,384.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_28_train.py
Written by:  notebooks/28_plan_a_cluster.ipynb

Rotary positions are left out: they have no parameters and send nothing.
"""

import gc
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)


@dataclass(frozen=True)
class Config:
    layers: int = 4
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 192
    vocabulary: int = 128
    length: int = 32
    micro_batches: int = 4  # of one sequence each, on each rank of dp
    dtype: torch.dtype = torch.float32


class Attention(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.head_width = cfg.width // cfg.heads
        keys = cfg.kv_heads * self.head_width
        self.query = nn.Linear(cfg.width, cfg.width, bias=False)
        self.key = nn.Linear(cfg.width, keys, bias=False)
        self.value = nn.Linear(cfg.width, keys, bias=False)
        self.out = nn.Linear(cfg.width, cfg.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in layers)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(cfg.width, cfg.hidden, bias=False)
        self.up = nn.Linear(cfg.width, cfg.hidden, bias=False)
        self.down = nn.Linear(cfg.hidden, cfg.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(cfg.width)
        self.attention = Attention(cfg)
        self.norm2 = nn.RMSNorm(cfg.width)
        self.mlp = MLP(cfg)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stage(nn.Module):
    """Number ``index`` of ``stages``: its blocks, and at the ends the embedding, or norm and head."""

    def __init__(self, cfg: Config, index: int, stages: int) -> None:
        super().__init__()
        mine = range(cfg.layers * index // stages, cfg.layers * (index + 1) // stages)
        self.tokens = nn.Embedding(cfg.vocabulary, cfg.width) if index == 0 else None
        self.blocks = nn.ModuleDict({str(number): Block(cfg) for number in mine})
        self.norm = nn.RMSNorm(cfg.width) if index == stages - 1 else None
        self.head = nn.Linear(cfg.width, cfg.vocabulary, bias=False) if index == stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tokens is not None:
            x = self.tokens(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


ENTER = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
ROWS, COLUMNS = ColwiseParallel(), RowwiseParallel()  # of the weight (out, in)
OF_A_BLOCK = {
    "attention": ENTER,
    "attention.query": ROWS,
    "attention.key": ROWS,
    "attention.value": ROWS,
    "attention.out": COLUMNS,
    "mlp": ENTER,
    "mlp.gate": ROWS,
    "mlp.up": ROWS,
    "mlp.down": COLUMNS,
}
OF_THE_ENDS = {
    "tokens": RowwiseParallel(input_layouts=Replicate()),
    "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}


def divide(stage: Stage, mesh: DeviceMesh) -> Stage:
    """Tensor parallelism within each layer, then FSDP. Shards stay gathered for all micro-batches."""
    if mesh["tp"].size() > 1:
        ends = {name: style for name, style in OF_THE_ENDS.items() if getattr(stage, name) is not None}
        parallelize_module(stage, mesh["tp"], ends)
        for block in stage.blocks.values():
            parallelize_module(block, mesh["tp"], OF_A_BLOCK)
    for block in stage.blocks.values():
        fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
    return fully_shard(stage, mesh=mesh["dp"], reshard_after_forward=False)


def forward_and_backward(
    stage: Stage, mesh: DeviceMesh, tokens: torch.Tensor, labels: torch.Tensor, cfg: Config
) -> torch.Tensor:
    """All micro-batches forward, then all backward (GPipe); tokens and labels are (micro-batches, length).

    Returns the mean loss of this rank's rows on the last stage, and 0 on the others.
    """
    ranks = dist.get_process_group_ranks(mesh.get_group("pp"))
    index = mesh.get_local_rank("pp")
    first, last = index == 0, index == len(ranks) - 1
    empty = {"size": (1, cfg.length, cfg.width), "dtype": cfg.dtype, "device": tokens.device}
    inputs = []
    outputs = []
    for row, label in zip(tokens, labels, strict=True):
        x = row[None] if first else torch.empty(**empty)
        if not first:
            dist.recv(x, ranks[index - 1])
            x.requires_grad_()
        y = stage(x)
        if last:
            with loss_parallel():
                y = F.cross_entropy(y.flatten(0, 1), label, reduction="sum") / labels.numel()
        else:
            dist.send(y.detach(), ranks[index + 1])
        inputs.append(x)
        outputs.append(y)
    loss = torch.zeros((), dtype=cfg.dtype, device=tokens.device)
    while outputs:
        x, y = inputs.pop(), outputs.pop()
        for_the_last_time = not outputs
        stage.set_is_last_backward(for_the_last_time)
        stage.set_requires_gradient_sync(for_the_last_time)
        stage.set_reshard_after_backward(for_the_last_time)
        if last:
            with loss_parallel():
                y.backward()
            loss += local(y).detach()
        else:
            gradient = torch.empty(**empty)
            dist.recv(gradient, ranks[index + 1])
            y.backward(gradient)
        if not first:
            dist.send(x.grad, ranks[index - 1])
    return loss


def local(x: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor that may be a DTensor."""
    return x.to_local() if isinstance(x, DTensor) else x


def sizes_for(ranks: int) -> dict[str, int]:
    """Two ranks for tp and two for pp where they divide, and the rest for dp; the outermost first."""
    tp = 2 if ranks % 2 == 0 else 1
    pp = 2 if ranks // tp % 2 == 0 else 1
    return {"dp": ranks // (tp * pp), "pp": pp, "tp": tp}


def main(cfg: Config) -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    use_cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if use_cuda else "gloo")
    sizes = sizes_for(dist.get_world_size())
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    torch.manual_seed(mesh.get_local_rank("pp"))  # ranks of one stage begin with the same values
    with device:
        stage = divide(Stage(cfg, mesh.get_local_rank("pp"), sizes["pp"]), mesh)
    # Some parameters lie on a mesh of dp, some on one of dp and tp: foreach would join them.
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.2, momentum=0.9, foreach=False)
    for step in range(4):
        generator = torch.Generator().manual_seed(1000 * step + mesh.get_local_rank("dp"))
        starts = torch.randint(cfg.vocabulary, (cfg.micro_batches, 1), generator=generator)
        rows = (starts + torch.arange(cfg.length + 1)).remainder(cfg.vocabulary).to(device)
        optimizer.zero_grad()
        loss = forward_and_backward(stage, mesh, rows[:, :-1], rows[:, 1:], cfg)
        optimizer.step()
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item() / (sizes['dp'] * sizes['tp']):.3f}, on a mesh {sizes}")

    gc.collect()  # FSDP's hooks hold the group in circles
    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Config())
