"""Any rank of a large mesh, in one process: Figure 5 of the Llama 3 paper, its order, and what torch refuses.

Run it:      python labs/lesson_22/proof_figure.py
"""

import math
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore  # also registers the backend "fake"

from shared.runtime.errors import CourseError
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
            "groups": {name: members(rank, FIGURE_5, name) for name in FIGURE_5},
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


def leaves(cfg: Config) -> dict[str, dict]:
    """For each dimension of the 16,384 GPUs: the distance of neighbours, and how many groups leave what."""
    dimensions = {}
    for name in reversed(LONG_CONTEXT):
        groups = groups_along(name, LONG_CONTEXT)
        if groups[0].tolist() != members(0, LONG_CONTEXT, name):
            raise CourseError(f"{name}: reshaping gives {groups[0].tolist()}, counting another group")
        dimensions[name] = {
            "step": (groups[0, 1] - groups[0, 0]).item(),
            "leave the server": leaving(groups, cfg.server),
            "leave the pod": leaving(groups, cfg.pod),
        }
    return dimensions


def refused() -> dict[str, str]:
    """{mistake on a mesh: what torch says}. The second is a warning."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    joined = mesh["dp", "cp"]._flatten("dp_cp")
    layer = fully_shard(torch.nn.Linear(8, 8), mesh=joined)
    mistakes = {
        "sliced in another order": lambda: mesh["cp", "dp"],
        "a joined dimension by its name": lambda: mesh["dp_cp"],
        "FSDP before TP": lambda: parallelize_module(layer, mesh["tp"], ColwiseParallel()),
    }
    said = {}
    with warnings.catch_warnings(action="error"):
        for mistake, make in mistakes.items():
            try:
                make()
            except (KeyError, UserWarning, ValueError) as error:
                said[mistake] = error.args[0].strip()
    assert joined.mesh.tolist() == [0, 2, 4, 6]
    dist.destroy_process_group()
    if said.keys() != mistakes.keys():
        raise CourseError(f"torch refuses only {said}")
    return said


def main(cfg: Config) -> None:
    ranks = check_figure()
    where = ", ".join(f"{name.upper()}{i}" for name, i in reversed(ranks[1]["position"].items()))
    print(f"GPU 1 is [{where}]; all 16 GPUs of figure 5: position and groups as init_device_mesh has them")
    for name, groups in leaves(cfg).items():
        print(
            f"{name.upper()} {LONG_CONTEXT[name]:2}: the next member is {groups['step']:4} further; "
            f"{groups['leave the server']:4.0%} of the groups leave their server, "
            f"{groups['leave the pod']:4.0%} their pod"
        )
    for mistake, said in refused().items():
        print(f"{mistake}: {said}")


if __name__ == "__main__":
    run(main, Config())
