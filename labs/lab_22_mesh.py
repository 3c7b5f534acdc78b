"""A mesh: who is in which group, who reads which rows, who draws which random numbers.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_22_mesh.py
Written by:  notebooks/22_device_mesh.ipynb (edit it there)
"""

import math
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import DistributedSampler

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

ROWS = 2  # of the batch, for each place along dp

Sizes = dict[str, int]  # {dimension: its size}, the outermost first, as init_device_mesh takes them


def layout(sizes: Sizes) -> torch.Tensor:
    """The ranks as an array with a dimension for each strategy."""
    return torch.arange(math.prod(sizes.values())).view(tuple(sizes.values()))


def position(rank: int, sizes: Sizes) -> dict[str, int]:
    """{dimension: index} of a rank."""
    indices = (layout(sizes) == rank).nonzero()[0].tolist()
    return dict(zip(sizes, indices, strict=True))


def members(rank: int, sizes: Sizes, name: str) -> list[int]:
    """The group of ``rank`` along ``name``: that index runs, all others stay."""
    place = position(rank, sizes) | {name: slice(None)}
    return layout(sizes)[tuple(place.values())].tolist()


def random_numbers(seed: int) -> list[float]:
    """What a dropout would draw."""
    return torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist()


def equal_shards(mesh: DeviceMesh) -> bool:
    """Whether DTensor's random values are the same in each shard, when all ranks have the same seed."""
    torch.manual_seed(0)
    weight = distribute_tensor(torch.empty(mesh.size(), 4, device=mesh.device_type), mesh, [Shard(0)])
    with warnings.catch_warnings(action="ignore"):  # DTensor warns once that a mesh of CPUs has no support
        torch.nn.init.normal_(weight)
    rows = weight.full_tensor()
    return all(torch.equal(row, rows[0]) for row in rows)


def check_groups(mesh: DeviceMesh, sizes: Sizes, device: torch.device) -> None:
    """Torch places this rank as we do, and a sum along each dimension is that of its members."""
    rank = dist.get_rank()
    for name in sizes:
        assert mesh.get_local_rank(name) == position(rank, sizes)[name], "torch counts as we do"
        group = mesh.get_group(name)
        assert dist.get_process_group_ranks(group) == members(rank, sizes, name), f"along {name}"
        total = torch.tensor([float(rank)], device=device)
        dist.all_reduce(total, group=group)
        assert total.item() == sum(members(rank, sizes, name)), f"the sum along {name}"


def own_share(batch: range, mesh: DeviceMesh, both: DeviceMesh, sizes: Sizes) -> dict:
    """The place of this rank on ``mesh``, and the rows and random numbers that follow from it."""
    rank, dp = dist.get_rank(), mesh.get_local_rank("dp")
    sampler = DistributedSampler(batch, num_replicas=mesh["dp"].size(), rank=dp, shuffle=False)
    return {
        "position": position(rank, sizes),
        "groups": {name: members(rank, sizes, name) for name in sizes},
        "rows": list(sampler),  # divided along dp, repeated along tp
        "dropout of whole activations": random_numbers(seed=dp),
        # another range: the two kinds must not share a stream
        "dropout of parts of them": random_numbers(seed=2**20 + both.get_local_rank()),
    }


def check_shares(mine: dict, everyone: list[dict], batch: range) -> None:
    """This rank's rows and random numbers beside those of all ranks."""
    for other in everyone:
        same_dp = other["position"]["dp"] == mine["position"]["dp"]
        for what in ("rows", "dropout of whole activations"):
            assert (other[what] == mine[what]) == same_dp, f"{what}: the same along tp, others along dp"
        alike = other["dropout of parts of them"] == mine["dropout of parts of them"]
        assert alike == (other["position"] == mine["position"]), "parts: each rank draws its own numbers"
    read = [row for other in mine["groups"]["dp"] for row in everyone[other]["rows"]]
    assert sorted(read) == list(batch), "along dp, each row is read once"


def main() -> None:
    device = setup()
    ranks = dist.get_world_size()
    tp = 2 if ranks % 2 == 0 else 1
    mesh = init_device_mesh(device.type, (ranks // tp, tp), mesh_dim_names=("dp", "tp"))
    sizes = {name: mesh[name].size() for name in mesh.mesh_dim_names}
    check_groups(mesh, sizes, device)
    both = mesh["dp", "tp"]._flatten("dp_tp")  # two dimensions joined into one; private, and widely used
    assert dist.get_process_group_ranks(both.get_group()) == list(range(ranks))

    batch = range(ROWS * sizes["dp"])
    mine = own_share(batch, mesh, both, sizes)
    everyone = [mine] * ranks
    dist.all_gather_object(everyone, mine)
    check_shares(mine, everyone, batch)
    repeated = equal_shards(both)
    assert repeated == (device.type == "cpu"), "on a CPU shards are equal, on GPUs they differ"
    if dist.get_rank() == 0:
        for number, report in enumerate(everyone):
            print(f"[rank {number}] {report['position']}, groups {report['groups']}, rows {report['rows']}")
        print(f"DTensor, the same seed on all ranks: each rank draws the same shard: {repeated}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
