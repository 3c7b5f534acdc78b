"""Sequences of unequal lengths, cut into batches in four ways: how many tokens are padding, who is slowest?

Run it:      python labs/lab_12_batches.py
Written by:  notebooks/12_uneven_inputs.ipynb (edit it there)
"""

from collections.abc import Callable

import torch

RANKS = 4
BUDGET = 2048  # tokens in a batch
POOL = 512  # sequences that are sorted together; across pools the order stays random


def padded(lengths: list[int]) -> int:
    """The tokens that a rank computes if it pads all sequences to the longest."""
    return len(lengths) * max(lengths)


def steps_of(lengths: list[int], size: Callable, most: int, pool: int, epoch: int) -> list[list[list[int]]]:
    """Indices of sequences by step and rank; equal on all ranks, as the epoch and the lengths are.

    A single sequence over ``most`` is a batch of its own. Up to RANKS - 1 batches are left out.
    """
    generator = torch.Generator().manual_seed(epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pools = [order[start : start + pool] for start in range(0, len(order), pool)]
    batches: list[list[int]] = [[]]
    for index in (index for group in pools for index in sorted(group, key=lengths.__getitem__)):
        if batches[-1] and size([lengths[other] for other in [*batches[-1], index]]) > most:
            batches.append([])
        batches[-1].append(index)
    for _ in range(len(batches) % RANKS):  # each rank needs a batch in each step: leave a few out, at random
        del batches[int(torch.randint(len(batches), (1,), generator=generator))]
    steps = [batches[start : start + RANKS] for start in range(0, len(batches), RANKS)]
    return [steps[place] for place in torch.randperm(len(steps), generator=generator)]


def main() -> None:
    quantiles = torch.linspace(0, 1, 8194, dtype=torch.float64)[1:-1]  # log-normal: mean 188, at most 1,024
    lengths = (5 + 0.7 * torch.special.ndtri(quantiles)).exp().clamp(max=1024).int().tolist()
    ways = {  # name: (a batch's size, the largest allowed, how many are sorted together, tokens computed)
        "8 sequences": (len, 8, 1, padded),
        "8 of like length": (len, 8, POOL, padded),
        "budget, like length": (padded, BUDGET, POOL, padded),
        "budget, packed": (sum, BUDGET, 1, sum),
    }
    print("tokens              padding  slowest rank, a step largest batch  useful")
    for name, (size, most, pool, computed) in ways.items():
        steps = steps_of(lengths, size, most, pool, epoch=0)
        batches = [[[lengths[index] for index in batch] for batch in step] for step in steps]
        assert max(size(batch) for step in batches for batch in step) <= most, f"{name}: over {most}"
        tokens = [[computed(batch) for batch in step] for step in batches]
        slowest = [max(step) for step in tokens]  # all ranks wait for it
        useful = sum(sum(batch) for step in batches for batch in step)
        assert 0.98 * sum(lengths) < useful <= sum(lengths), f"{name}: uses {useful} tokens"
        padding = 1 - useful / sum(map(sum, tokens))
        share = useful / (RANKS * sum(slowest))
        print(f"{name:19} {padding:7.0%} {sum(slowest) / len(steps):20,.0f} {max(slowest):13,} {share:7.0%}")


if __name__ == "__main__":
    main()
