"""Train a small network on real images with DDP: it learns, and what it sends is counted by the kernel.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_train.py
Written by:  notebooks/08_ddp.ipynb
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from shared.data import load_images
from shared.errors import CourseError
from shared.group import process_group
from shared.lab import run
from shared.models import ConvNet
from shared.parity import assert_same_on_every_rank, parameters
from shared.report import print_on_rank_0, progress
from shared.results import record_results
from shared.traffic import wire_bytes


@dataclass(frozen=True)
class Config:
    epochs: int = 10
    global_batch: int = 48  # divides by 2, 3, 4, 6 and 8
    learning_rate: float = 2e-3
    channels: int = 64
    accuracy: float = 0.95  # what the run must reach on images it has not seen
    wire_slack: float = 0.10  # gloo's own headers, as a fraction, beside 2 KiB per step


def main(cfg: Config) -> None:
    with process_group(seed=3) as group:
        data = load_images("digits")
        train_x, train_y = data.train_x.to(group.device), data.train_y.to(group.device)
        model = ConvNet(channels=cfg.channels).to(group.device)
        on_gpu = group.device.type == "cuda"
        ddp = DistributedDataParallel(model, device_ids=[group.local_rank] if on_gpu else None)
        optimizer = torch.optim.Adam(ddp.parameters(), cfg.learning_rate)

        losses = []
        dist.barrier()
        before = wire_bytes()
        for epoch in progress(range(cfg.epochs), "epochs"):
            order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
            for batch in order.split(cfg.global_batch)[:-1]:  # the last one is smaller: see lesson 12
                mine = batch[group.rank :: group.world_size]
                optimizer.zero_grad()
                loss = F.cross_entropy(ddp(train_x[mine]), train_y[mine])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        dist.barrier()
        after = wire_bytes()
        assert_same_on_every_rank("after training", parameters(ddp))

        right = torch.zeros(2, device=group.device)
        mine = slice(group.rank, None, group.world_size)  # each test image on exactly one rank
        with torch.no_grad():
            scores = model(data.test_x[mine].to(group.device))
            right[0] = (scores.argmax(1).cpu() == data.test_y[mine]).sum()
            right[1] = len(scores)
        dist.all_reduce(right)
        accuracy = (right[0] / right[1]).item()
        if accuracy < cfg.accuracy or right[1] != len(data.test_x):
            raise CourseError(f"accuracy {accuracy:.3f} over {right[1]:.0f} images, expected {cfg.accuracy}")
        print_on_rank_0(f"{right[1]:.0f} images never seen in training: {accuracy:.1%} recognised")

        n, steps = group.world_size, len(losses)
        gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        formula = 2 * (n - 1) / n * gradient_bytes
        per_step = None
        if before is not None and group.backend == "gloo":
            per_step = (after - before) / steps
            if abs(per_step - formula) > cfg.wire_slack * formula + 2048:
                raise CourseError(f"rank {group.rank} sent {per_step:.0f} bytes per step, not {formula:.0f}")
            print_on_rank_0(
                f"gradients have {gradient_bytes:,} bytes; a ring sends {formula:,.0f} of them per step"
            )
            print_on_rank_0(f"the kernel counted within {cfg.wire_slack:.0%} of that on every rank")
        record_results(
            "lab_08_train", {"losses": losses, "accuracy": accuracy, "sent": per_step, "formula": formula}
        )


if __name__ == "__main__":
    run(main, Config())
