"""Any rank of a large mesh, in one process: Figure 5 of the Llama 3 paper, and why its order is that one.

Run it:      python labs/lesson_22/proof_figure.py
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore  # also registers the backend "fake"

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run

from lab_22_mesh import Sizes, members, position


@dataclass(frozen=True)
class Config:
    """Numbers of Grattafiori et al., The Llama 3 Herd of Models, 2024, arXiv 2407.21783, section 3.3."""

    server: int = 8  # GPUs in a server
    pod: int = 3072  # GPUs in a pod, between which the network has its full bandwidth


FIGURE_5 = {"dp": 2, "pp": 2, "cp": 2, "tp": 2}  # the paper writes the innermost first: [TP, CP, PP, DP]
SAME_GROUP_AS_GPU_0 = {"tp": 1, "cp": 2, "pp": 4, "dp": 8}  # what its caption says
LONG_CONTEXT = {"dp": 8, "pp": 16, "cp": 16, "tp": 8}  # table 4, 16,384 GPUs
ORDERS = {
    "Llama 3": ("dp", "pp", "cp", "tp"),
    "Megatron-LM, torchtitan": ("pp", "dp", "cp", "tp"),
}


def as_any_rank(rank: int, sizes: Sizes) -> dict:
    """Position and groups of a rank, as torch has them. The backend "fake" talks to nobody."""
    world = math.prod(sizes.values())
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    groups = {name: dist.get_process_group_ranks(mesh.get_group(name)) for name in sizes}
    result = {"position": dict(zip(sizes, mesh.get_coordinate(), strict=True)), "groups": groups}
    dist.destroy_process_group()
    return result


def check_figure() -> list[dict]:
    """Each of 16 ranks: ours as torch's, and as the caption says."""
    ranks = []
    for rank in range(math.prod(FIGURE_5.values())):
        theirs = as_any_rank(rank, FIGURE_5)
        ours = {
            "position": position(rank, FIGURE_5),
            "groups": {name: members(rank, FIGURE_5, [name]) for name in FIGURE_5},
        }
        if ours != theirs:
            raise CourseError(f"rank {rank}: by hand {ours}, in torch {theirs}")
        ranks.append(ours)
    for name, other in SAME_GROUP_AS_GPU_0.items():
        if ranks[0]["groups"][name] != [0, other]:
            raise CourseError(f"{name}: GPU 0 should be with GPU {other}, not in {ranks[0]['groups'][name]}")
    if ranks[1]["position"] != {"dp": 0, "pp": 0, "cp": 0, "tp": 1}:
        raise CourseError(f"GPU 1 should be TP1, CP0, PP0, DP0, not {ranks[1]['position']}")
    return ranks


def groups_along(name: str, sizes: Sizes) -> torch.Tensor:
    """(groups, size): the ranks of each group along a dimension, by reshaping 0, 1, 2, ..."""
    ranks = torch.arange(math.prod(sizes.values())).view(tuple(sizes.values()))
    return ranks.movedim(list(sizes).index(name), -1).reshape(-1, sizes[name])


def leaving(groups: torch.Tensor, block: int) -> float:
    """The share of groups whose members are not all in one block of so many consecutive GPUs."""
    blocks = groups // block
    return (blocks.amin(1) != blocks.amax(1)).double().mean().item()


def check_order(order: tuple[str, ...], cfg: Config) -> dict[str, dict]:
    """For each dimension of the 16,384 GPUs: the distance of neighbours, and how many groups leave what."""
    sizes = {name: LONG_CONTEXT[name] for name in order}
    dimensions = {}
    for name in reversed(sizes):
        groups = groups_along(name, sizes)
        if groups[0].tolist() != members(0, sizes, [name]):
            raise CourseError(f"{name}: reshaping gives {groups[0].tolist()}, counting another group")
        dimensions[name] = {
            "size": sizes[name],
            "step": (groups[0, 1] - groups[0, 0]).item(),
            "leave the server": leaving(groups, cfg.server),
            "leave the pod": leaving(groups, cfg.pod),
        }
    return dimensions


def main(cfg: Config) -> None:
    ranks = check_figure()
    for rank in (0, 1):
        where = ", ".join(f"{name.upper()}{i}" for name, i in reversed(ranks[rank]["position"].items()))
        print(f"GPU {rank} is [{where}]")
    for name in SAME_GROUP_AS_GPU_0:
        print(f"the {name.upper()} group of GPU 0: {ranks[0]['groups'][name]}")
    print("all 16 GPUs: position and groups by hand are those of init_device_mesh")

    orders = {who: check_order(order, cfg) for who, order in ORDERS.items()}
    for who, dimensions in orders.items():
        print(f"{who}, from the inside:")
        for name, groups in dimensions.items():
            print(
                f"    {name.upper()} {groups['size']:2}: the next member is {groups['step']:4} further; "
                f"{groups['leave the server']:4.0%} of the groups leave their server, "
                f"{groups['leave the pod']:4.0%} their pod"
            )
    llama = orders["Llama 3"]
    assert llama["tp"]["leave the server"] == 0, "TP stays inside of a server"
    assert llama["cp"]["leave the pod"] == 0 and llama["dp"]["leave the pod"] == 1
    others = orders["Megatron-LM, torchtitan"]
    assert others["dp"]["leave the pod"] == 0 and others["pp"]["leave the pod"] == 1
    record_results("22_figure", {"ranks": ranks, "orders": orders})


if __name__ == "__main__":
    run(main, Config())
