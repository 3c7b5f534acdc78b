"""FSDP as one writes it at work: a small GPT from the meta device to a checkpoint of shards.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_torch.py FOLDER
Written by:  notebooks/19_fsdp.ipynb (edit it there)
"""

import gc
import sys
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 64, 32, 4, 4, 16
MAX_NORM = 0.5  # of the gradient
COMPILED = False  # True on a GPU; needs a C++ compiler on a CPU
SAVED = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


def policy_of(context, operation, *args, **kwargs) -> CheckpointPolicy:
    """Selective checkpointing: keep what matrix products return, and recompute everything else."""
    if operation in SAVED:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """(rows, length, width) to the same; the activations are recomputed in the backward pass."""
        contexts = partial(create_selective_checkpoint_contexts, policy_of)
        return checkpoint(self.compute, x, table, use_reentrant=False, context_fn=contexts)

    def compute(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(turned(q, table), turned(k, table), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


def turned(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotary positions: pairs of elements of (rows, heads, length, width) are turned by angles."""
    assert table.dtype != torch.bfloat16, "FSDP has cast the rotary table"
    first, second = x.chunk(2, dim=-1)
    cos, sin = table
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class GPT(nn.Module):
    """Tokens (rows, length) to logits. The head is the embedding; no state dict has the rotary table."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("table", torch.empty(2, LENGTH, WIDTH // HEADS // 2), persistent=False)
        self.fill_buffers()

    def fill_buffers(self) -> None:
        half = WIDTH // HEADS // 2
        angles = torch.arange(LENGTH)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        self.table.copy_(torch.stack([angles.cos(), angles.sin()]))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.table)
        return self.head(self.norm(x))


def build_sharded(device: torch.device) -> GPT:
    """Rank 0's first values, in shards. Only rank 0 ever holds the whole, in its host's memory."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # else each block casts the rotary table to bfloat16
    )
    with torch.device("meta"):
        model = GPT()  # shapes without memory
    for block in model.blocks:  # checkpointing is inside; then compile, then shard
        if COMPILED:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # the root: embedding, which is the head, and last norm
    assert all(isinstance(p, DTensor) for p in model.parameters())  # each parameter is in a unit
    model.to_empty(device=device)  # memory for this rank's shards
    model.fill_buffers()  # no state dict has them
    first = GPT().state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, first, options=options)
    assert model.head.weight is model.tokens.weight  # still tied
    return model


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> torch.Tensor:
    """Train on this rank's rows; returns its loss."""
    optimizer.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)  # of all shards on all ranks
    optimizer.step()
    return loss.detach()


def own_rows(device: torch.device, rows: int = 16) -> torch.Tensor:
    """Counting by threes from a random start: the next token can be learned."""
    start = torch.randint(VOCABULARY, (rows, 1))
    return ((start + 3 * torch.arange(LENGTH + 1)) % VOCABULARY).to(device)


def main(folder: str) -> None:
    device = setup()
    torch.manual_seed(0)
    model = build_sharded(device)
    assert all(p.dtype == torch.float32 for p in model.parameters())  # the policy casts none of them up
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # after fully_shard, of the shards
    torch.manual_seed(dist.get_rank())  # each rank has data of its own
    losses = [step(model, optimizer, own_rows(device)).item() for _ in range(30)]

    with torch.no_grad():  # a forward pass is a collective: all ranks call it the same number of times
        loss = loss_of(model, own_rows(device))
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    weights, moments = get_state_dict(model, optimizer)  # names and shards: nothing is gathered
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)  # each rank writes its shards
    weight = model.blocks[0].qkv.weight
    assert loss < 0.5 * losses[0], losses
    if dist.get_rank() == 0:
        print(f"{tuple(weight.shape)} in {weight.placements}: rank 0 has {tuple(weight.to_local().shape)}")
        print(f"loss {losses[0]:.2f} -> {loss:.2f} on all ranks; saved {len(weights)} tensors in shards")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
    gc.collect()  # or a thread of gloo may abort the exit: pytorch#190489
