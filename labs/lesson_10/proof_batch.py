"""What a larger global batch does to training: after the same epochs, the same steps, with a larger step.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_10/proof_batch.py
"""

from dataclasses import dataclass
from itertools import cycle, islice

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
    seeds: tuple[int, ...] = (0, 1, 2)
    batch: int = 32  # the batch for which the learning rate was chosen
    learning_rate: float = 0.04
    epochs: int = 4
    warm_up: float = 0.2  # of the steps
    channels: int = 8
    factors: tuple[int, ...] = (1, 4, 16)


RULES = {  # name: (as many epochs or as many steps as the smallest batch, is the learning rate scaled)
    "same rate, same epochs": ("epochs", False),
    "scaled rate, same epochs": ("epochs", True),
    "same rate, same steps": ("steps", False),
}


def batches(images: int, size: int, seed: int):
    """Without end: batches of one epoch after the other."""
    for epoch in cycle(range(10**6)):
        order = torch.randperm(images, generator=torch.Generator().manual_seed(1000 * seed + epoch))
        yield from order.split(size)[: images // size]


def train(rule: str, factor: int, seed: int, images: Images, cfg: Config) -> dict:
    """Train on batches of this size. By lesson 06 it is all the same how many ranks share a batch."""
    torch.manual_seed(seed)
    device = images.train_x.device
    model = ConvNet(channels=cfg.channels).to(device, torch.float64)  # the same accuracy on each processor
    count = len(images.train_x)
    measure, is_scaled = RULES[rule]
    steps = cfg.epochs * (count // (cfg.batch * (factor if measure == "epochs" else 1)))
    rate = cfg.learning_rate * (factor if is_scaled else 1)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    warm_up = max(1, int(cfg.warm_up * steps))
    for step, part in enumerate(islice(batches(count, cfg.batch * factor, seed), steps)):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / warm_up)
        optimizer.zero_grad()
        F.cross_entropy(model(images.train_x[part]), images.train_y[part]).backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(images.test_x).argmax(1) == images.test_y).float().mean().item()
    return {"rule": rule, "factor": factor, "seed": seed, "steps": steps, "right": right}


def main(cfg: Config) -> None:
    with process_group(timeout_s=120) as group:
        train_x, train_y, test_x, test_y = (part.to(group.device) for part in load_images("digits"))
        largest = cfg.batch * cfg.factors[-1]
        count = len(train_x) // largest * largest  # so that an epoch has the same images with each size
        images = Images(train_x[:count].double(), train_y[:count], test_x.double(), test_y)
        cases = [(rule, factor, seed) for rule in RULES for factor in cfg.factors for seed in cfg.seeds]
        mine = cases[group.rank :: group.world_size]
        everyone: list = [None] * group.world_size
        dist.all_gather_object(everyone, [train(*case, images, cfg) for case in progress(mine, "runs")])
        runs = [run for part in everyone for run in part]
        for rule in RULES:
            for factor in cfg.factors:
                these = [run for run in runs if run["rule"] == rule and run["factor"] == factor]
                right = sorted(run["right"] for run in these)
                told = ", ".join(f"{share:.1%}" for share in right)
                size = cfg.batch * factor
                print_on_rank_0(f"{rule:24} batch {size:3}, {these[0]['steps']:3} steps: {told}")
        small, large = (
            [
                run["right"]
                for run in runs
                if run["rule"] == "same rate, same epochs" and run["factor"] == factor
            ]
            for factor in (cfg.factors[0], cfg.factors[-1])
        )
        if max(large) >= min(small):
            raise CourseError("after the same number of epochs, the largest batch should have learnt least")
        record_results("10_batch", {"runs": runs, "batch": cfg.batch})


if __name__ == "__main__":
    run(main, Config())
