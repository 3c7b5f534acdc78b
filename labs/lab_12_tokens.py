"""Unequal numbers of tokens, micro-batches and steps: each token of a step counts the same, on all ranks.

First the model is copied by DDP, then it is sharded by FSDP2.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_tokens.py
Written by:  notebooks/12_uneven_inputs.ipynb (edit it there)
"""

import gc
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

VOCABULARY = 16
LONGEST = 12  # tokens in a sequence
NOT_COUNTED = -100  # the label of padding, or of a prompt: cross_entropy leaves it out

MicroBatch = tuple[torch.Tensor, torch.Tensor]  # tokens and labels, (sequences, length) each


def micro_batches_of(rank: int, step: int, sharded: bool, device: torch.device) -> list[MicroBatch]:
    """Micro-batches of 4 sequences, padded to the longest in the micro-batch. Under DDP rank r has 2 + r.

    A sharded model gathers its parameters in each forward pass, so all ranks need the same number: 3.
    """
    generator = torch.Generator().manual_seed(100 * step + rank)
    micro_batches = []
    for _ in range(3 if sharded else 2 + rank):
        lengths = torch.randint(1, LONGEST + 1, (4, 1), generator=generator)
        tokens = torch.randint(VOCABULARY, (4, int(lengths.max())), generator=generator)
        labels = torch.randint(VOCABULARY, tokens.shape, generator=generator)
        labels[torch.arange(tokens.shape[1]) >= lengths] = NOT_COUNTED
        micro_batches.append((tokens.to(device), labels.to(device)))
    return micro_batches


def build(device: torch.device) -> nn.Module:
    torch.manual_seed(12)
    return nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)).to(device)


def loss_sum(model: nn.Module, micro_batch: MicroBatch) -> torch.Tensor:
    """The sum over the tokens that count, not their mean."""
    tokens, labels = micro_batch
    scores = model(tokens)  # (sequences, length, vocabulary)
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=NOT_COUNTED, reduction="sum")


def tokens_that_count(micro_batches: list[MicroBatch]) -> torch.Tensor:
    """In all micro-batches of a step, on all ranks. Collective."""
    count = sum((labels != NOT_COUNTED).sum() for _, labels in micro_batches)
    dist.all_reduce(count)
    return count.clamp(min=1)  # in a step of cut prompts none counts


def average_if(is_last: bool, model: nn.Module) -> AbstractContextManager:
    """Gradients add up; the ranks average them in the last micro-batch of a step. Forward belongs inside."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)
        return nullcontext()
    return nullcontext() if is_last else model.no_sync()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: list[MicroBatch]) -> None:
    tokens = tokens_that_count(micro_batches)
    for number, micro_batch in enumerate(micro_batches, start=1):
        with average_if(number == len(micro_batches), model):
            # DDP and FSDP2 divide the sum over ranks by their number
            loss = loss_sum(model, micro_batch) * dist.get_world_size() / tokens
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def steps_of_all(own: int, device: torch.device) -> int:
    """The number of steps for which all ranks have data. Collective, once before training."""
    steps = torch.tensor(own, device=device)
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    return int(steps)


def train(sharded: bool, device: torch.device) -> None:
    rank = dist.get_rank()
    model = fully_shard(build(device)) if sharded else DistributedDataParallel(build(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = [micro_batches_of(rank, step, sharded, device) for step in range(3 + rank)]  # different numbers
    steps = steps_of_all(len(data), device)
    for step in range(steps):
        own = sum(int((labels != NOT_COUNTED).sum()) for _, labels in data[step])
        counts = [0] * dist.get_world_size()
        dist.all_gather_object(counts, own)
        if rank == 0:
            print(f"step {step}: tokens on each rank {counts}, each counts 1/{sum(counts)}")
        train_step(model, optimizer, data[step])
    if rank == 0:
        print(f"all ranks completed {steps} steps")


def main() -> None:
    device = setup()
    for name, sharded in (("DDP", False), ("FSDP2", True)):
        if dist.get_rank() == 0:
            print(f"{name}:")
        train(sharded, device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # FSDP and its hooks form a cycle; if the dying interpreter ends it, that may abort with -6
