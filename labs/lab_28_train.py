"""Train a Llama on a mesh of pipeline, data and tensor parallelism, on 4 ranks or as one of 16,384.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_28_train.py --pp 2 --vpp 2 --tp 2
Written by:  notebooks/28_plan_a_cluster.ipynb

Interleaved stages, FSDP2 with mixed precision, tensor and sequence parallelism, AdamW, clipping. Rotary
positions are left out: they have no parameters and send nothing.
"""

import argparse
import os
import socket
import sys
import time
from dataclasses import dataclass, fields, replace

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

Schedule = Schedule1F1B | ScheduleInterleaved1F1B


@dataclass(frozen=True)
class Config:
    layers: int = 6
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 192
    vocabulary: int = 128
    length: int = 32
    micro_batches: int = 4  # of one sequence each, on each rank of dp
    vpp: int = 2  # stages on each rank
    recompute: int = 0  # 1: each block again in backward, so that its input alone is kept
    steps: int = 6
    lr: float = 3e-2
    dtype: torch.dtype = torch.bfloat16  # of matrix products; parameters and optimizer state are in float32


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
        self.gate = nn.Linear(cfg.width, cfg.ffn, bias=False)
        self.up = nn.Linear(cfg.width, cfg.ffn, bias=False)
        self.down = nn.Linear(cfg.ffn, cfg.width, bias=False)

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
    """Number ``index`` of ``stages``. Embedding and head count as a block each, as in Llama 3."""

    def __init__(self, cfg: Config, index: int, stages: int) -> None:
        super().__init__()
        both = cfg.layers + 2
        begin = max(1, both * index // stages)
        end = min(both - 1, both * (index + 1) // stages)
        last = index == stages - 1
        self.tokens = nn.Embedding(cfg.vocabulary, cfg.width) if index == 0 else None
        self.blocks = nn.ModuleDict({str(number - 1): Block(cfg) for number in range(begin, end)})
        self.recompute = bool(cfg.recompute)
        self.norm = nn.RMSNorm(cfg.width) if last else None
        self.head = nn.Linear(cfg.width, cfg.vocabulary, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tokens is not None:
            x = self.tokens(x)
        for block in self.blocks.values():
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x if self.head is None else self.head(self.norm(x))


def apply_tp(stage: Stage, mesh: DeviceMesh) -> None:
    """Tensor parallelism within attention and MLP, sequence parallelism between them."""
    ends = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(stage, mesh, {name: ends[name] for name in ends if getattr(stage, name) is not None})
    # Without this, each layer with the same input would gather it, and reduce its gradient, for itself.
    gather_once = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan = {
        "norm1": SequenceParallel(),
        "attention": gather_once,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "mlp": gather_once,
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in stage.blocks.values():
        parallelize_module(block, mesh, plan)


def apply_fsdp(stage: Stage, mesh: DeviceMesh, cfg: Config) -> None:
    """Shards stay gathered for all micro-batches: a rank holds whole parameters and gradients in the step."""
    policy = MixedPrecisionPolicy(param_dtype=cfg.dtype, reduce_dtype=max_dtype(cfg.dtype))
    for block in stage.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(stage, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def max_dtype(dtype: torch.dtype) -> torch.dtype:
    """Float32 for what is added up, or more."""
    return torch.promote_types(dtype, torch.float32)


def build_stages(cfg: Config, mesh: DeviceMesh, device: torch.device) -> dict[int, Stage]:
    """This rank's stages by number: they are pp apart."""
    pp = mesh["pp"].size()
    stages = {}
    for index in range(mesh.get_local_rank("pp"), pp * cfg.vpp, pp):
        with device:
            stages[index] = Stage(cfg, index, pp * cfg.vpp)
    return stages


def parallelize(stages: dict[int, Stage], mesh: DeviceMesh, cfg: Config) -> None:
    for stage in stages.values():
        if mesh["tp"].size() > 1:
            apply_tp(stage, mesh["tp"])
        apply_fsdp(stage, mesh["dp"], cfg)


def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).to(max_dtype(logits.dtype)), labels.flatten())


def build_schedule(stages: dict[int, Stage], mesh: DeviceMesh, cfg: Config, device: torch.device) -> Schedule:
    """Tells each stage what it receives and returns, so that ranks need not ask each other."""
    count = mesh["pp"].size() * cfg.vpp
    tp = mesh["tp"].size()
    between = torch.empty(1, cfg.length // tp, cfg.width, dtype=cfg.dtype, device="meta", requires_grad=True)
    tokens = torch.empty(1, cfg.length, dtype=torch.long, device="meta")
    logits = torch.empty(
        1, cfg.length, cfg.vocabulary // tp, dtype=cfg.dtype, device="meta", requires_grad=True
    )
    parts = []
    for index, stage in stages.items():
        first, last = index == 0, index == count - 1
        part = PipelineStage(
            stage,
            index,
            count,
            device,
            input_args=tokens if first else between,
            output_args=logits if last else between,
            input_grads=None if first else between,
            output_grads=None if last else between,
            group=mesh.get_group("pp"),
        )
        parts.append(part)
    if cfg.vpp == 1:
        return Schedule1F1B(parts[0], cfg.micro_batches, loss_fn)
    return ScheduleInterleaved1F1B(parts, cfg.micro_batches, loss_fn, max_active_stages=cfg.vpp)


def forward_and_backward(
    schedule: Schedule, mesh: DeviceMesh, tokens: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """All micro-batches; tokens and labels are (micro-batches, length).

    Returns the mean loss of this rank's rows on the last stage, and 0 on the others.
    """
    index = mesh.get_local_rank("pp")
    first, last = index == 0, index == mesh["pp"].size() - 1
    losses: list[torch.Tensor] = []
    inputs = (tokens,) if first else ()
    with loss_parallel():
        schedule.step(*inputs, target=labels if last else None, losses=losses if last else None)
    if not last:
        return torch.zeros((), device=tokens.device)
    return torch.stack([local(loss).detach() for loss in losses]).mean()


def local(x: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor that may be a DTensor."""
    return x.to_local() if isinstance(x, DTensor) else x


def clip_gradients(parameters: list[nn.Parameter], most: float) -> torch.Tensor:
    """Scale all gradients if their norm over the whole mesh is larger; return the norm.

    Ranks of tp have copies of a norm's gradient: each adds its part of it.
    """
    square = torch.zeros((), device=parameters[0].device)
    for p in parameters:
        mesh, placements = p.grad.device_mesh, p.grad.placements
        copies = mesh["tp"].size() if placements[-1] == Replicate() else 1
        square += local(p.grad).square().sum() / copies
    dist.all_reduce(square)
    for p in parameters:
        local(p.grad).mul_((most / (square.sqrt() + 1e-6)).clamp(max=1))
    return square.sqrt()


def batch_of(cfg: Config, step: int, index: int) -> torch.Tensor:
    """Rows that count up from a random token: (micro-batches, length + 1); other ones on each rank of dp."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    starts = torch.randint(cfg.vocabulary, (cfg.micro_batches, 1), generator=generator)
    return (starts + torch.arange(cfg.length + 1)).remainder(cfg.vocabulary)


def setup() -> torch.device:
    """Join the group that the launcher describes; return this rank's device: a GPU of its own, or the CPU.

    The CPU is for jobs without a GPU, and for RANK_BY_RANK_DEVICE=cpu. A job with too few GPUs ends here.
    """
    device = torch.device("cpu")
    gpu = "none"
    if torch.cuda.device_count() > 0 and os.environ.get("RANK_BY_RANK_DEVICE") != "cpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    store, rank, world_size = next(dist.rendezvous("env://"))
    store.set(f"GPU of rank {rank}", gpu)  # ranks that differ must know it before the group forms
    gpus = set(store.multi_get([f"GPU of rank {other}" for other in range(world_size)])) - {b"none"}
    if 0 < len(gpus) < world_size:
        mine = f"rank {rank} on {socket.gethostname()} has {device}"
        ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
        sys.exit(f"{world_size} ranks, {len(gpus)} GPUs ({mine}): {ways}")
    backend = "nccl" if gpus else "gloo"
    bound = device if gpus else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=bound)
    if rank == 0:
        print(f"{world_size} ranks on {device.type} with {backend}")
    return device


def main(cfg: Config, pp: int, tp: int) -> None:
    device = setup()
    ranks = dist.get_world_size()
    if ranks % (pp * tp):
        raise SystemExit(f"{ranks} ranks do not divide by pp {pp} x tp {tp}")
    sizes = {"pp": pp, "dp": ranks // (pp * tp), "tp": tp}
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    torch.manual_seed(mesh.get_local_rank("pp"))  # ranks of one stage begin with the same values
    stages = build_stages(cfg, mesh, device)
    parallelize(stages, mesh, cfg)
    schedule = build_schedule(stages, mesh, cfg, device)
    parameters = [p for stage in stages.values() for p in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=cfg.lr)
    for step in range(cfg.steps):
        start = time.perf_counter()
        rows = batch_of(cfg, step, mesh.get_local_rank("dp")).to(device)
        optimizer.zero_grad()
        loss = forward_and_backward(schedule, mesh, rows[:, :-1], rows[:, 1:])
        norm = clip_gradients(parameters, most=1.0)
        optimizer.step()
        dist.all_reduce(loss)  # only the last stage has one
        if dist.get_rank() == 0:
            rate = sizes["dp"] * cfg.micro_batches * cfg.length / (time.perf_counter() - start)
            mean = loss.item() / (sizes["dp"] * tp)
            print(f"step {step}  loss {mean:.3f}  norm {norm.item():.2f}  {rate:,.0f} tokens/s  {sizes}")

    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a Llama on a mesh; dp takes the ranks that are left.")
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--tp", type=int, default=1)
    names = [field.name for field in fields(Config) if field.type is int]
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Config, name))
    options = vars(parser.parse_args())
    main(replace(Config(), **{name: options[name] for name in names}), options["pp"], options["tp"])
