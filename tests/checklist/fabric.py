"""A language model by Lightning Fabric."""

import time

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
from words import Corpus, RNN


def validate(fabric, model, loader):
    model.eval()
    losses = torch.zeros(len(loader), device=fabric.device)
    with torch.no_grad():
        for i, (x, y) in enumerate(loader):
            losses[i] = model(x, y)
    model.train()
    return fabric.all_reduce(losses.mean(), reduce_op="mean").item()


def main():
    fabric = Fabric(accelerator="cuda", devices=4, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(1337 + fabric.global_rank)
    with fabric.rank_zero_first():
        corpus = Corpus("data", download=True)
    model = RNN(vocabulary=len(corpus.words))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(model, optimizer)
    loader = DataLoader(corpus.train, batch_size=32, shuffle=True)
    val_loader = DataLoader(corpus.valid, batch_size=32)
    loader, val_loader = fabric.setup_dataloaders(loader, val_loader)
    started = time.perf_counter()
    for epoch in range(5):
        for i, (x, y) in enumerate(loader):
            accumulating = (i + 1) % 4 != 0
            with fabric.no_backward_sync(model, enabled=accumulating):
                loss = model(x, y)
                fabric.backward(loss / 4)
            if not accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            spent = fabric.broadcast(time.perf_counter() - started)
            if spent > 3600:
                break
        val_loss = validate(fabric, model, val_loader)
        fabric.print(f"epoch {epoch}: {val_loss:.3f}")
        fabric.save(f"epoch_{epoch}.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})
        if fabric.is_global_zero:
            with open("log.txt", "a") as file:
                file.write(f"{epoch} {val_loss}\n")
    fabric.barrier()


if __name__ == "__main__":
    main()
