"""What a larger global batch does to training, with the same learning rate and with a larger one.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_batch.py
Written by:  notebooks/10_training_template.ipynb
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0, progress
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import Images, load_images
from shared.training.models import ConvNet


@dataclass(frozen=True)
class Config:
    seed: int = 0
    batch: int = 32  # the batch for which the learning rate was chosen
    learning_rate: float = 0.04
    epochs: int = 4
    channels: int = 8
    factors: tuple[int, ...] = (1, 2, 4, 8, 16)


def train(batch: int, learning_rate: float, images: Images, cfg: Config) -> dict:
    """Train on batches of this size. By lesson 06 it is all the same how many ranks share a batch."""
    torch.manual_seed(cfg.seed)
    device = images.train_x.device
    model = ConvNet(channels=cfg.channels).to(device)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.9)
    steps = 0
    for epoch in range(cfg.epochs):
        order = torch.randperm(len(images.train_x), generator=torch.Generator().manual_seed(epoch))
        for part in order.split(batch)[: len(order) // batch]:
            optimizer.zero_grad()
            F.cross_entropy(model(images.train_x[part]), images.train_y[part]).backward()
            optimizer.step()
            steps += 1
    with torch.no_grad():
        scores = model(images.test_x)
    right = (scores.argmax(1) == images.test_y).float().mean().item()
    return {"steps": steps, "loss": F.cross_entropy(scores, images.test_y).item(), "right": right}


def main(cfg: Config) -> None:
    with process_group(seed=cfg.seed, timeout_s=120) as group:
        images = Images(*(part.to(group.device) for part in load_images("digits")))
        runs = [(rule, factor) for rule in ("same", "scaled") for factor in cfg.factors]
        mine = {}
        for rule, factor in progress(runs[group.rank :: group.world_size], "runs"):
            rate = cfg.learning_rate * (factor if rule == "scaled" else 1)
            mine[f"{rule} {factor}"] = train(cfg.batch * factor, rate, images, cfg)
        everyone: list = [None] * group.world_size
        dist.all_gather_object(everyone, mine)
        losses = {name: found["loss"] for part in everyone for name, found in part.items()}
        smallest = losses[f"same {cfg.factors[0]}"]
        largest = losses[f"same {cfg.factors[-1]}"]
        if largest <= smallest:
            raise CourseError("with the same learning rate, the largest batch was to learn least")
        record_results("lab_10_batch", {"runs": mine, "batch": cfg.batch, "rate": cfg.learning_rate})
        print_on_rank_0(f"{len(runs)} runs of {cfg.epochs} epochs each")


if __name__ == "__main__":
    run(main, Config())
