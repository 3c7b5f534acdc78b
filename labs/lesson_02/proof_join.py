"""How often ``setup`` of lesson 01 asks the store: each rank writes one key and reads one, rank 0 reads all.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lesson_02/proof_join.py
"""

import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group, read_environment
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

from lab_01_join import NO_GPU, count_gpus
from lesson_02.proof_who_waits import Config, NotingStore, torchruns_store

GPU = "GPU-{}"  # of rank 0 and of all others: two different ones


def keys_in(store: NotingStore, *operations: str) -> int:
    """How many keys these requests name."""
    return sum(len(request.keys) for request in store.requests if request.operation in operations)


def main(cfg: Config) -> None:
    rank, _, n = read_environment()
    noted = {}
    for name, gpu in (("no GPU", NO_GPU), ("two GPUs", GPU.format(min(rank, 1)))):
        store = NotingStore(dist.PrefixStore(name, torchruns_store(cfg)))
        found = count_gpus(store, rank, n, gpu)
        expected = 0 if gpu == NO_GPU else min(n, 2)
        if found != expected:
            raise CourseError(f"rank {rank}, {name}: counted {found}, expected {expected}")
        noted[name] = (keys_in(store, "set"), keys_in(store, "get", "multi_get"))
    with process_group() as group:
        everyone = [None] * n
        dist.all_gather_object(everyone, noted)
        for name in noted:
            writes, reads = (sum(rank[name][which] for rank in everyone) for which in (0, 1))
            if (writes, reads) != (n + 1, 2 * n):
                raise CourseError(f"{name}: {writes} writes, {reads} reads; expected {n + 1} and {2 * n}")
        print_on_rank_0(f"{group.world_size} ranks write {n + 1} keys and read {2 * n}")


if __name__ == "__main__":
    run(main, Config())
