"""A mesh by hand: who is in which group, who reads which rows, who draws which random numbers.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_22_mesh.py
Written by:  notebooks/22_device_mesh.ipynb
"""

import math
import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

ROWS = 2  # of the batch, for each place along dp

Sizes = dict[str, int]  # {dimension: its size}, the outermost first, as init_device_mesh takes them


def position(rank: int, sizes: Sizes) -> dict[str, int]:
    """{dimension: index} of a rank. The innermost dimension, the last, counts fastest."""
    found = dict.fromkeys(sizes, 0)
    for name in reversed(sizes):
        found[name] = rank % sizes[name]
        rank //= sizes[name]
    return found


def members(rank: int, sizes: Sizes, names: Iterable[str]) -> list[int]:
    """The ranks that have the same index as ``rank`` along each dimension but ``names``, in order."""
    names = set(names)
    own = position(rank, sizes)
    found = []
    for other in range(math.prod(sizes.values())):
        its = position(other, sizes)
        if all(its[name] == own[name] for name in sizes if name not in names):
            found.append(other)
    return found


def part(rank: int, sizes: Sizes, names: Iterable[str]) -> tuple[int, int]:
    """(index, parts): what is divided along ``names``, and repeated along the others, is in so many parts."""
    group = members(rank, sizes, names)
    return group.index(rank), len(group)


def group_along(name: str, sizes: Sizes) -> dist.ProcessGroup:
    """This rank's group along a dimension. All ranks make all groups, in one order, as new_group wants it."""
    own = None
    for ranks in sorted({tuple(members(rank, sizes, [name])) for rank in range(dist.get_world_size())}):
        group = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            own = group
    return own


def random_numbers(seed: int) -> list[float]:
    """What a dropout would draw."""
    return torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist()


def setup() -> torch.device:
    """Join the group that torchrun describes; return this rank's device: a GPU of its own, else the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    device_id = None
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
        device_id = device
        torch.accelerator.set_device_index(local_rank)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device_id)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on {device.type} with {dist.get_backend()}")
    return device


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    tp = 2 if ranks % 2 == 0 else 1
    sizes = {"dp": ranks // tp, "tp": tp}
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    assert mesh.get_coordinate() == tuple(position(rank, sizes).values()), "torch counts as we do"
    for name in sizes:
        group = group_along(name, sizes)
        torchs = dist.get_process_group_ranks(mesh.get_group(name))
        assert dist.get_process_group_ranks(group) == torchs == members(rank, sizes, [name]), f"along {name}"
        total = torch.tensor([float(rank)], device=device)
        dist.all_reduce(total, group=group)
        assert total.item() == sum(torchs), f"the sum along {name} is that of {torchs}"

    index, parts = part(rank, sizes, ["dp"])
    batch = torch.arange(ROWS * parts)
    mine = {
        "position": position(rank, sizes),
        "groups": {name: members(rank, sizes, [name]) for name in sizes},
        "rows": batch.chunk(parts)[index].tolist(),  # divided along dp, repeated along tp
        "dropout of whole activations": random_numbers(seed=index),
        "dropout of parts of them": random_numbers(seed=part(rank, sizes, ["dp", "tp"])[0]),
    }
    everyone = [mine] * ranks
    dist.all_gather_object(everyone, mine)
    for other in everyone:
        same_dp = other["position"]["dp"] == mine["position"]["dp"]
        for what in ("rows", "dropout of whole activations"):
            assert (other[what] == mine[what]) == same_dp, f"{what}: the same along tp, others along dp"
        alike = other["dropout of parts of them"] == mine["dropout of parts of them"]
        assert alike == (other["position"] == mine["position"]), "parts: each rank draws its own numbers"
    read = [row for other in mine["groups"]["dp"] for row in everyone[other]["rows"]]
    assert read == batch.tolist(), "along dp, each row is read once"
    if rank == 0:
        for number, one in enumerate(everyone):
            print(f"[rank {number}] {one['position']}, groups {one['groups']}, rows {one['rows']}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
