"""What goes wrong without set_epoch, with one seed for all, and with a padded evaluation.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_10/proof_claims.py
"""

import random
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    seed: int = 11
    workers: int = 2  # per rank
    images: int = 12  # per rank


def gathered(value: object, group: Group) -> list:
    values = [None] * group.world_size
    dist.all_gather_object(values, value)
    return values


def orders(cfg: Config, group: Group, call_set_epoch: bool) -> list[list[int]]:
    """What the ranks together see in two epochs."""
    sampler = DistributedSampler(range(cfg.images * group.world_size), seed=cfg.seed)
    epochs = []
    for epoch in range(2):
        if call_set_epoch:
            sampler.set_epoch(epoch)
        shares = gathered(list(sampler), group)
        epochs.append([index for share in shares for index in share])
        assert sorted(epochs[-1]) == list(range(cfg.images * group.world_size))  # each image once
    return epochs


class Draws(Dataset):
    """Each item is what an augmentation would draw, by torch, by numpy and by Python's own ``random``."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, list[int]]:
        of_torch = torch.randint(2**31, ()).item()
        return get_worker_info().id, [of_torch, np.random.randint(2**31), random.randrange(2**31)]


def seed_worker(first: int, step: int, worker: int) -> None:
    torch.manual_seed(first + step * worker)
    np.random.seed(first + step * worker)
    random.seed(first + step * worker)


def draws(way: str, cfg: Config, group: Group) -> dict[str, list[int]]:
    """The first draws of each worker of each rank, if the loaders are seeded in this ``way``."""
    torch.manual_seed(cfg.seed if way == "one seed for all ranks" else cfg.seed + group.rank)
    inits = {
        "one seed in each worker": partial(seed_worker, cfg.seed, 0),
        "seed + rank + worker": partial(seed_worker, cfg.seed + group.rank, 1),
    }
    by_rank = torch.Generator().manual_seed(cfg.seed + group.rank)
    options = {"worker_init_fn": inits.get(way), "generator": by_rank if "generator" in way else None}
    loader = DataLoader(Draws(), None, num_workers=cfg.workers, multiprocessing_context="fork", **options)
    first = {}
    for worker, numbers in loader:
        first.setdefault(worker, [int(number) for number in numbers])
    ranks = enumerate(gathered(first, group))
    return {f"{rank}.{worker}": own[worker] for rank, own in ranks for worker in sorted(own)}


def accuracies(group: Group) -> dict[str, tuple[int, int]]:
    """(right, seen) of an evaluation of 2N + 1 images on N ranks; the model knows the first one only."""
    total = 2 * group.world_size + 1
    shares = {
        "padded": list(DistributedSampler(range(total), shuffle=False)),
        "unpadded": list(range(group.rank, total, group.world_size)),
    }
    results = {}
    for name, share in shares.items():
        counts = torch.tensor([share.count(0), len(share)], device=group.device)
        dist.all_reduce(counts)
        results[name] = tuple(counts.tolist())
    return results | {"one process": (1, total)}


def main(cfg: Config) -> None:
    with process_group(seed=cfg.seed, smallest=2) as group:
        ranks = group.world_size
        workers = cfg.workers
        same = {call: len(set(map(tuple, orders(cfg, group, call)))) == 1 for call in (False, True)}
        assert same == {False: True, True: False}
        print_on_rank_0(
            f"both epochs in the same order: {same[False]} without set_epoch, {same[True]} with it"
        )
        expected = {  # how many different draws
            "one seed in each worker": 1,
            "one seed for all ranks": workers,
            "seed + rank + worker": ranks + workers - 1,
            "a generator for each rank": ranks * workers,
        }
        drawn = {way: draws(way, cfg, group) for way in expected}
        for way, numbers in drawn.items():
            different = len(set(map(tuple, numbers.values())))
            print_on_rank_0(f"{way}: {different} different augmentations in {len(numbers)} workers")
            assert different == expected[way]
        right = accuracies(group)
        for name, (hits, seen) in right.items():
            print_on_rank_0(f"{name}: {hits} of {seen} right, {hits / seen:.1%}")
        assert right["unpadded"] == right["one process"] != right["padded"]
        record_results("10_claims", {"drawn": drawn, "right": right})


if __name__ == "__main__":
    run(main, Config())
