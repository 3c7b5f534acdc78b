"""Speech recognition: batches of unequal length, a loss per token, an early stop that all ranks agree on."""

import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)


class Utterances(Dataset):
    def __init__(self, manifest):
        self.lines = open(manifest).read().splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return torch.load(self.lines[index])


class Recognizer(nn.Module):
    def __init__(self, classes=29):
        super().__init__()
        self.rnn = nn.LSTM(80, 512, 4, batch_first=True, dropout=0.1)
        self.norm = nn.BatchNorm1d(512)
        self.head = nn.Linear(512, classes)

    def forward(self, x):
        x, _ = self.rnn(x)
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2)).log_softmax(-1)


def collate(items):
    items = [item for item in items if item["length"] > 10]
    return {key: nn.utils.rnn.pad_sequence([item[key] for item in items], batch_first=True) for key in ("x", "y")}


def token_loss(model, batch, device):
    scores = model(batch["x"].to(device))
    labels = batch["y"].to(device)
    mask = labels != 0
    losses = nn.functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none")
    return (losses * mask).sum(), mask.sum()


def evaluate(model, loader, device):
    model.eval()
    loss_sum = torch.zeros(1, device=device)
    tokens = torch.zeros(1, device=device)
    with torch.no_grad():
        for batch in loader:
            loss, count = token_loss(model, batch, device)
            loss_sum += loss
            tokens += count
    dist.all_reduce(loss_sum)
    dist.all_reduce(tokens)
    model.train()
    return (loss_sum / tokens).item()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17 + rank)
    train_set, dev_set = Utterances("train.txt"), Utterances("dev.txt")
    sampler = DistributedSampler(train_set, world, rank)
    loader = DataLoader(train_set, batch_size=16, sampler=sampler, collate_fn=collate, drop_last=True)
    dev_loader = DataLoader(Subset(dev_set, range(rank, len(dev_set), world)), batch_size=16, collate_fn=collate)
    net = Recognizer().to(device)
    model = DistributedDataParallel(net, device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    best, waited = float("inf"), 0
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            loss, count = token_loss(model, batch, device)
            total = count.detach().float()
            dist.all_reduce(total)
            optimizer.zero_grad()
            (loss * world / total).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if step % 50 == 0 and rank == 0:
                logger.info("epoch %d, step %d: %.3f", epoch, step, loss.item() / count.item())
        dev_loss = evaluate(net, dev_loader, device)
        if dev_loss < best:
            best, waited = dev_loss, 0
            if rank == 0:
                torch.save(net.state_dict(), "best.pt")
        else:
            waited += 1
        if waited >= 5:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
