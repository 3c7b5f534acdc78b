"""Fine-tuning by FullyShardedDataParallel, started by torchrun; options of the command line through fire."""

import functools
import os
from dataclasses import dataclass

import fire
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer

from summaries import Block, Summaries


@dataclass
class TrainConfig:
    model_name: str = "gpt2"
    lr: float = 1e-5
    epochs: int = 3
    batch_size: int = 4
    save_model: bool = True


def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def wrap(model, local_rank):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=local_rank)


def evaluation(model, loader, local_rank):
    model.eval()
    loss = torch.zeros(2, device=local_rank)
    with torch.no_grad():
        for batch in loader:
            outputs = model(**{key: value.to(local_rank) for key, value in batch.items()})
            loss[0] += outputs.loss
            loss[1] += 1
    dist.all_reduce(loss)
    return (loss[0] / loss[1]).item()


def save(model, rank):
    whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        state = model.state_dict()
    if rank == 0:
        torch.save(state, "model.pt")


def main(**kwargs):
    config = TrainConfig(**kwargs)
    setup()
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    tokenizer = AutoTokenizer.from_pretrained(config.model_name)
    model = AutoModelForCausalLM.from_pretrained(config.model_name)
    model = wrap(model, local_rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    train_set, val_set = Summaries(tokenizer, "train"), Summaries(tokenizer, "validation")
    sampler = DistributedSampler(train_set, shuffle=True)
    loader = DataLoader(train_set, config.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, config.batch_size, sampler=DistributedSampler(val_set, shuffle=False))
    best = float("inf")
    for epoch in range(config.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**{key: value.to(local_rank) for key, value in batch.items()}).loss
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
        val_loss = evaluation(model, val_loader, local_rank)
        if val_loss < best and config.save_model:
            best = val_loss
            save(model, rank)
        if rank == 0:
            print(f"epoch {epoch}: {val_loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    fire.Fire(main)
