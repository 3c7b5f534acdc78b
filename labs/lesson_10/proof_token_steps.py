"""Each step of labs/lab_10_tokens.py equals a step of one process: the mean over all labels of all ranks.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_10/proof_token_steps.py
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters

import lab_10_train as script
from lab_10_tokens import LONGEST, NOT_COUNTED, WIDTH, Bytes

WEIGHTS = 2 * 12 * WIDTH**2 + 256 * WIDTH  # of the matrices that each token passes
SCORES = (
    2 * 2 * LONGEST * WIDTH
)  # of two layers, for each token: its products with all keys, then with values
FLOPS = 3 * 2 * LONGEST * (WEIGHTS + SCORES)  # forward and backward


@dataclass(frozen=True)
class Config:
    steps: int = 3
    batch: int = 13  # lines, which no number of ranks from 2 to 8 divides
    tolerance: float = 1e-12  # float64


def main(cfg: Config) -> None:
    small = ["--float64", "--batch-size", str(cfg.batch), "--micro-batch", "4"]
    options = script.parse([*small, "--warm-up", "0", "--clip", "0.5", "--weight-decay", "0"])
    with process_group(timeout_s=120, smallest=2) as group:
        ranks = script.Ranks(group.rank, group.world_size, group.device)
        data = Bytes(options).data()
        trainer = script.Trainer(data, options, ranks, 1000, Bytes)
        if trainer.flops_per_sample != FLOPS:
            raise CourseError(f"a line takes {FLOPS:,} FLOPs, not {trainer.flops_per_sample:,}")
        alone = script.build(data, options, ranks, Bytes)
        optimizer = torch.optim.SGD(alone.parameters(), options.lr, momentum=0.9)
        joined = list(script.RankBatches(len(data.train), cfg.batch, options.seed, 0, 1))
        mine = list(script.RankBatches(len(data.train), cfg.batch, options.seed, ranks.rank, ranks.size))
        counts = []
        for step in range(cfg.steps):
            x, y = data.train[[line for _, line in joined[step]]]
            for of_optimizer in optimizer.param_groups:
                of_optimizer["lr"] = trainer.learning_rate()
            scores = alone(x.to(ranks.device)).flatten(0, 1)
            F.cross_entropy(scores, y.to(ranks.device).flatten(), ignore_index=NOT_COUNTED).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            share_x, share_y = data.train[[line for _, line in mine[step]]]
            trainer.train_step(share_x, share_y)
            assert_same_on_every_rank("a step", parameters(trainer.ddp))
            assert_all_equal(f"step {step + 1}:", parameters(trainer.ddp), parameters(alone), cfg.tolerance)
            counts.append(int((share_y != NOT_COUNTED).sum()))
        if int(trainer.counted) == ranks.size * sum(counts):
            raise CourseError("all ranks have the same number of labels: the divisor is not tried")
        print_on_rank_0(f"{cfg.steps} steps on {int(trainer.counted)} labels equal those of one process")


if __name__ == "__main__":
    run(main, Config())
