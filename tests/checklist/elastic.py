"""A trainer that goes on after a restart: snapshots, torchrun's variables, one class."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from shop import Baskets, Recommender


class Trainer:
    def __init__(self, model, loader, val_loader, optimizer, save_every, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.model = model.to(self.local_rank)
        self.loader, self.val_loader = loader, val_loader
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            self.load_snapshot()
        self.model = DDP(self.model, device_ids=[self.local_rank])

    def load_snapshot(self):
        snapshot = torch.load(self.snapshot_path, map_location=f"cuda:{self.local_rank}")
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.epochs_run = snapshot["epochs_run"]

    def save_snapshot(self, epoch):
        snapshot = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epochs_run": epoch + 1,
        }
        torch.save(snapshot, self.snapshot_path + ".part")
        os.replace(self.snapshot_path + ".part", self.snapshot_path)

    def run_batch(self, baskets, bought):
        self.optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(baskets), bought)
        loss.backward()
        self.optimizer.step()
        return loss

    def validate(self):
        self.model.eval()
        hits = torch.zeros(2, device=self.local_rank)
        with torch.no_grad():
            for baskets, bought in self.val_loader:
                scores = self.model.module(baskets.to(self.local_rank))
                hits[0] += (scores.argmax(1) == bought.to(self.local_rank).argmax(1)).sum()
                hits[1] += len(bought)
        dist.all_reduce(hits)
        return (hits[0] / hits[1]).item()

    def run_epoch(self, epoch):
        self.model.train()
        self.loader.sampler.set_epoch(epoch)
        for baskets, bought in self.loader:
            self.run_batch(baskets.to(self.local_rank), bought.to(self.local_rank))

    def train(self, max_epochs):
        best, bad = 0.0, 0
        for epoch in range(self.epochs_run, max_epochs):
            self.run_epoch(epoch)
            accuracy = self.validate()
            bad = 0 if accuracy > best else bad + 1
            best = max(best, accuracy)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self.save_snapshot(epoch)
            if self.global_rank == 0:
                print(f"epoch {epoch}: {accuracy:.3f}")
            if bad > 3:
                break


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    train_set, val_set = Baskets("train"), Baskets("val")
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(train_set, batch_size=512, sampler=DistributedSampler(train_set))
    val_loader = DataLoader(val_set, batch_size=512, sampler=DistributedSampler(val_set, shuffle=False))
    trainer = Trainer(model, loader, val_loader, optimizer, save_every=5, snapshot_path="snapshot.pt")
    trainer.train(100)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
