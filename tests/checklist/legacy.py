"""In the way of older scripts: --local_rank, one process downloads first, a run that can be resumed."""

import argparse
import logging
import os

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler
from transformers import AdamW, BertForQuestionAnswering, BertTokenizer
from squad import features, metrics

logger = logging.getLogger(__name__)


def load_and_cache(args, tokenizer, evaluate=False):
    if args.local_rank not in [-1, 0] and not evaluate:
        torch.distributed.barrier()
    dataset = features(args.data_dir, tokenizer, evaluate)
    if args.local_rank == 0 and not evaluate:
        torch.distributed.barrier()
    return dataset


def train(args, dataset, model, tokenizer):
    sampler = RandomSampler(dataset) if args.local_rank == -1 else DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, batch_size=args.batch_size)
    optimizer = AdamW(model.parameters(), lr=5e-5)
    saved = os.path.join(args.model_name, "optimizer.pt")
    if os.path.isfile(saved):
        optimizer.load_state_dict(torch.load(saved, map_location="cpu"))
    if args.local_rank != -1:
        model = DistributedDataParallel(model, device_ids=[args.local_rank], find_unused_parameters=True)
    step = 0
    for epoch in range(args.epochs):
        if args.local_rank != -1:
            sampler.set_epoch(epoch)
        for batch in loader:
            model.train()
            batch = tuple(part.to(args.device) for part in batch)
            loss = model(input_ids=batch[0], attention_mask=batch[1], start_positions=batch[2], end_positions=batch[3])[0]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            model.zero_grad()
            step += 1
            if args.is_main and step % 1000 == 0:
                folder = os.path.join(args.output_dir, f"checkpoint-{step}")
                bare = model.module if hasattr(model, "module") else model
                bare.save_pretrained(folder)
                torch.save(optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
    return step


def evaluate(args, model, tokenizer):
    dataset = load_and_cache(args, tokenizer, evaluate=True)
    loader = DataLoader(dataset, batch_size=args.batch_size)
    model.eval()
    answers = []
    for batch in loader:
        with torch.no_grad():
            answers.append(model(input_ids=batch[0].to(args.device), attention_mask=batch[1].to(args.device)))
    return metrics(dataset, answers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name", default="bert-base-uncased")
    parser.add_argument("--data_dir", default="squad")
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    args.local_rank = int(os.environ.get("LOCAL_RANK", -1))
    if args.local_rank == -1:
        args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        torch.cuda.set_device(args.local_rank)
        args.device = torch.device("cuda", args.local_rank)
        torch.distributed.init_process_group(backend="nccl")
    args.is_main = args.local_rank == -1 or torch.distributed.get_rank() == 0
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    tokenizer = BertTokenizer.from_pretrained(args.model_name)
    model = BertForQuestionAnswering.from_pretrained(args.model_name)
    if args.local_rank == 0:
        torch.distributed.barrier()
    model.to(args.device)
    steps = train(args, load_and_cache(args, tokenizer), model, tokenizer)
    if args.is_main:
        logger.info("steps: %d, results: %s", steps, evaluate(args, model, tokenizer))
        torch.save(args, os.path.join(args.output_dir, "training_args.bin"))


if __name__ == "__main__":
    main()
