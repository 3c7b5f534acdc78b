"""DDP equals a single process after every step, in gradients and parameters.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_equal.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from lab_08_ddp import train_step, wrap
from torch import nn

from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients, parameters


@dataclass(frozen=True)
class Config:
    seed: int = 7
    steps: int = 6
    global_batch: int = 840  # divides by every world size up to 8
    learning_rate: float = 0.5
    tolerance: float = 1e-12  # float64


class TiedNet(nn.Module):
    """A classifier of digits with a weight used twice and a layer that does not learn.

    Input (batch, 1, 8, 8), output (batch, 10) scores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 32).requires_grad_(False)
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)
        self.second.weight = self.first.weight  # tied
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(x.flatten(1))
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.second(x))
        return self.head(x)


def batches(cfg: Config, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The global batches, the same on each rank: images float64 (840, 1, 8, 8), labels (840,)."""
    data = load_images("digits")
    for step in range(cfg.steps):
        chosen = torch.arange(step * cfg.global_batch, (step + 1) * cfg.global_batch) % len(data.train_x)
        yield data.train_x[chosen].double().to(device), data.train_y[chosen].to(device)


def reference(cfg: Config, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """What a single process starts from: the model that rank 0's seed gives."""
    torch.manual_seed(cfg.seed)
    model = TiedNet().double().to(device)
    return model, torch.optim.SGD(model.parameters(), cfg.learning_rate, momentum=0.9)


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        alone, alone_optimizer = reference(cfg, group.device)

        torch.manual_seed(cfg.seed + group.rank)  # a different model on each rank, on purpose
        model = TiedNet().double().to(group.device)
        before = sum(p.sum().item() for p in model.parameters())
        ddp = wrap(model, group.device)
        after = sum(p.sum().item() for p in model.parameters())
        print_in_rank_order(f"sum of parameters: {before:8.4f} before DDP(model), {after:8.4f} after")
        assert_same_on_every_rank("after construction", parameters(ddp))
        assert_all_equal("after construction", parameters(ddp), parameters(alone), 0.0)

        optimizer = torch.optim.SGD(ddp.parameters(), cfg.learning_rate, momentum=0.9)
        mine = slice(group.rank, None, group.world_size)
        rows = []
        for step, (x, y) in enumerate(batches(cfg, group.device)):
            loss = train_step(ddp, optimizer, x[mine], y[mine])
            alone_loss = train_step(alone, alone_optimizer, x, y)
            gradient = assert_all_equal("gradient", gradients(ddp), gradients(alone), cfg.tolerance)
            parameter = assert_all_equal("parameter", parameters(ddp), parameters(alone), cfg.tolerance)
            assert_same_on_every_rank(f"step {step}", parameters(ddp))
            rows.append({"loss": loss, "alone": alone_loss})
            print_on_rank_0(
                f"step {step}: loss of one process {alone_loss:.4f}, "
                f"largest difference in gradients {gradient:.0e}, in parameters {parameter:.0e}"
            )
        record_results("lab_08_equal", {"steps": rows})


if __name__ == "__main__":
    run(main, Config())
