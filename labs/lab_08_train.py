"""Train a small network on real images with DDP: it learns, and what it sends is counted by the kernel.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_train.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.kernel import wire_bytes
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0, progress
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import Images, load_images
from shared.training.models import ConvNet
from shared.training.parity import assert_same_on_every_rank, parameters


@dataclass(frozen=True)
class Config:
    epochs: int = 10
    global_batch: int = 48  # divides by 2, 3, 4, 6 and 8
    learning_rate: float = 2e-3
    channels: int = 64
    accuracy: float = 0.95  # what the run must reach on images it has not seen
    wire_slack: float = 0.02  # gloo's own headers, as a fraction, beside 2 KiB per step


def train(ddp: nn.Module, data: Images, cfg: Config, group: Group) -> tuple[list[float], int]:
    """Train on this rank's part of each batch; return the losses of those parts, and how many images."""
    train_x, train_y = data.train_x.to(group.device), data.train_y.to(group.device)
    optimizer = torch.optim.Adam(ddp.parameters(), cfg.learning_rate)
    losses = []
    images = 0
    for epoch in progress(range(cfg.epochs), "epochs"):
        order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(cfg.global_batch)[:-1]:  # the last batch is smaller and left out
            mine = batch[group.rank :: group.world_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(train_x[mine]), train_y[mine])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            images += len(mine)
    return losses, images


@torch.no_grad()
def evaluate(model: nn.Module, data: Images, group: Group) -> tuple[int, int]:
    """Return (images recognised, images seen) over all ranks; each test image is on exactly one rank."""
    model.eval()  # a habit: this net has neither dropout nor batch norm, but most have
    mine = slice(group.rank, None, group.world_size)
    labels = data.test_y[mine].to(group.device)
    right = model(data.test_x[mine].to(group.device)).argmax(1) == labels
    counts = torch.tensor([right.sum().item(), len(right)], device=group.device)
    dist.all_reduce(counts)
    model.train()
    return counts[0].item(), counts[1].item()


def main(cfg: Config) -> None:
    with process_group(seed=3) as group:
        data = load_images("digits")
        model = ConvNet(channels=cfg.channels).to(group.device)
        on_gpu = group.device.type == "cuda"
        ddp = DistributedDataParallel(model, device_ids=[group.local_rank] if on_gpu else None)

        dist.barrier()
        before = wire_bytes()
        losses, images = train(ddp, data, cfg, group)
        dist.barrier()
        after = wire_bytes()
        all_images = torch.tensor(images, device=group.device)
        dist.all_reduce(all_images)
        expected = len(losses) * cfg.global_batch
        if all_images.item() != expected:
            raise CourseError(f"the ranks trained on {all_images.item()} images in all, not on {expected}")
        assert_same_on_every_rank("after training", parameters(ddp))

        recognised, seen = evaluate(model, data, group)
        if seen != len(data.test_x) or recognised < cfg.accuracy * seen:
            raise CourseError(f"{recognised} of {seen} images recognised, expected {cfg.accuracy:.0%}")
        print_on_rank_0(f"{seen} images never seen in training: {recognised / seen:.1%} recognised")

        n = group.world_size
        gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        formula = 2 * (n - 1) / n * gradient_bytes
        sent = None
        if before is not None and group.backend == "gloo":
            sent = (after - before) / len(losses)
            if abs(sent - formula) > cfg.wire_slack * formula + 2048:
                raise CourseError(f"rank {group.rank} sent {sent:,.0f} bytes per step, not {formula:,.0f}")
        print_on_rank_0(
            f"gradients have {gradient_bytes:,} bytes; a ring sends {formula:,.0f} per step and rank"
        )
        record_results("lab_08_train", {"losses": losses, "sent": sent, "formula": formula})


if __name__ == "__main__":
    run(main, Config())
