"""Check of exercise 22. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import math
from types import ModuleType

import torch

from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

TOLERANCE = 1e-12  # relative, float64
Sizes = dict[str, int]
# Meshes that are asked about; no rank of them needs to run.
MESHES: list[Sizes] = [
    {"dp": 2, "pp": 2, "cp": 2, "tp": 2},  # Figure 5 of the Llama 3 paper
    {"pp": 2, "dp": 3, "tp": 4},
    {"replicate": 2, "shard": 4, "tp": 2},
    {"dp": 6},
]
DATA = {"dp", "replicate", "shard"}


def ranks_of(sizes: Sizes) -> torch.Tensor:
    """The ranks in the shape of the mesh."""
    return torch.arange(math.prod(sizes.values())).view(tuple(sizes.values()))


def expected_position(rank: int, sizes: Sizes) -> dict[str, int]:
    place = (ranks_of(sizes) == rank).nonzero()[0].tolist()
    return dict(zip(sizes, place, strict=True))


def expected_members(rank: int, sizes: Sizes, names: set[str]) -> list[int]:
    own = expected_position(rank, sizes)
    chosen = tuple(slice(None) if name in names else own[name] for name in sizes)
    return ranks_of(sizes)[chosen].flatten().tolist()


def backwards(sizes: Sizes) -> Sizes:
    return dict(reversed(sizes.items()))


def check_position(answer: ModuleType, sizes: Sizes, rank: int) -> None:
    call = f"position({rank}, {sizes})"
    found = answer.position(rank, dict(sizes))
    expected = expected_position(rank, sizes)
    if found == expected and list(found) == list(expected):
        return
    if found == expected_position(rank, backwards(sizes)):
        raise Wrong(f"{call} is {found}: the last dimension is the innermost, where ranks are neighbours")
    if not isinstance(found, dict) or list(found) != list(expected):
        raise Wrong(f"{call} is {found!r}, expected a dictionary such as {expected}, in this order")
    raise Wrong(f"{call} is {found}, expected {expected}")


def check_members(answer: ModuleType, sizes: Sizes, rank: int, names: set[str]) -> None:
    call = f"members({rank}, {sizes}, {sorted(names)})"
    found = answer.members(rank, dict(sizes), sorted(names))
    expected = expected_members(rank, sizes, names)
    if found == expected:
        return
    others = set(sizes) - names
    if found == expected_members(rank, sizes, others):
        raise Wrong(f"{call} is {found}: these ranks differ along {sorted(others)}")
    if isinstance(found, list) and sorted(found) == expected:
        raise Wrong(f"{call} is {found}, expected are the same ranks in ascending order")
    if isinstance(found, list) and sorted([*found, rank]) == expected:
        raise Wrong(f"{call} is {found}: the rank itself is a member, too")
    raise Wrong(f"{call} is {found!r}, expected {expected}")


def check_batch_part(answer: ModuleType, sizes: Sizes, rank: int) -> None:
    data = [name for name in sizes if name in DATA]
    call = f"batch_part({rank}, {sizes}, {data})"
    found = answer.batch_part(rank, dict(sizes), data)
    group = expected_members(rank, sizes, set(data))
    expected = (group.index(rank), len(group))
    if isinstance(found, tuple) and found == expected:
        return
    world = math.prod(sizes.values())
    if found == (rank, world):
        raise Wrong(f"{call} is {found}: ranks of one model would read different rows")
    raise Wrong(f"{call} is {found!r}, expected {expected}")


def check_mesh(answer: ModuleType, sizes: Sizes) -> None:
    """Each rank of a mesh, without starting it."""
    names = [{name} for name in sizes] + [set(), set(sizes), set(list(sizes)[:2]), set(list(sizes)[::2])]
    world = math.prod(sizes.values())
    for rank in range(world):
        check_position(answer, sizes, rank)
    for rank in range(world):
        for chosen in names:
            check_members(answer, sizes, rank, chosen)
        check_batch_part(answer, sizes, rank)


def gradients_of(sizes: Sizes, group: Group) -> tuple[list[tuple[torch.Tensor, set[str]]], torch.Tensor]:
    """What this rank holds of some gradients, and the norm of all of them."""
    generator = torch.Generator().manual_seed(22)
    held = []
    total = torch.zeros((), dtype=torch.float64)
    for rows, divided in ((8, set()), (5, {"dp"}), (8, {"tp"}), (9, {"dp", "tp"}), (1, {"dp", "tp"})):
        whole = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
        if rows == 1:
            whole = 1e-5 * whole  # in float32 it would be lost beside the others
        total += whole.square().sum()
        of_rank = expected_members(group.rank, sizes, divided)
        part = whole.tensor_split(len(of_rank))[of_rank.index(group.rank)]  # for some ranks it is empty
        held.append((part.clone().to(group.device), set(divided)))
    return held, total.sqrt().to(group.device)


def check_norm(answer: ModuleType, sizes: Sizes, group: Group) -> int:
    """The norm on the ranks that run; returns the bytes that were handed to collectives."""
    held, expected = gradients_of(sizes, group)
    before = [part.clone() for part, _ in held]
    with SameCalls() as log:
        found = answer.global_norm([(part, set(divided)) for part, divided in held], dict(sizes))
    what = f"global_norm, mesh {sizes}"
    if not isinstance(found, torch.Tensor) or found.shape != () or found.dtype != torch.float64:
        raise Wrong(f"{what}: returns {found!r}, expected a 0-dim tensor of float64")
    for part, (given, _) in zip(before, held, strict=True):
        if not torch.equal(part, given):
            raise Wrong(f"{what}: the gradients have changed")
    explain(what, found, expected, held, sizes, group)
    if len(log.calls) > 1 or log.bytes() > 8:
        calls = ", ".join(f"{count} x {op}" for op, count in log.counts().items())
        raise Wrong(
            f"{what}: right, but by {calls} of {log.bytes()} bytes; one all-reduce of 8 bytes is enough"
        )
    return log.bytes()


def explain(
    what: str, found: torch.Tensor, expected: torch.Tensor, held: list, sizes: Sizes, group: Group
) -> None:
    """Raise ``Wrong``, with a guess at the reason, unless the norm is right."""
    off = abs((found / expected - 1).item())
    if off <= TOLERANCE:
        return
    own = torch.stack([part.square().sum() for part, _ in held]).sum()
    everyone = [gradients_of(sizes, rank_of(group, rank))[0] for rank in range(group.world_size)]
    squares = [torch.stack([part.square().sum() for part, _ in one]).sum() for one in everyone]
    guesses = {
        "is that of this rank's gradients alone": own.sqrt(),
        "counts copies as often as there are": torch.stack(squares).sum().sqrt(),
        "is the sum of the ranks' norms: add up squares": torch.stack(squares).sqrt().sum(),
    }
    for guess, wrong in guesses.items():
        if torch.allclose(found, wrong, rtol=1e-9, atol=0):
            raise Wrong(f"{what}: {found:.4f} {guess}; expected {expected:.4f}")
    raise Wrong(f"{what}: {found:.12f} is off by {off:.1e} of it, expected {expected:.12f}")


def rank_of(group: Group, rank: int) -> Group:
    return Group(rank, group.local_rank, group.world_size, group.device, group.backend)


def verify(answer: ModuleType, group: Group) -> str:
    for sizes in MESHES:
        check_mesh(answer, sizes)
    n = group.world_size
    meshes = [{"dp": n // tp, "tp": tp} for tp in range(1, n + 1) if n % tp == 0]
    try:
        for sizes in meshes:
            check_norm(answer, sizes, group)
    except DifferentCalls as error:
        raise Wrong(str(error)) from None
    ranks = sum(math.prod(sizes.values()) for sizes in MESHES)
    return (
        f"groups and parts of the batch for {ranks} ranks of {len(MESHES)} meshes; the norm on {len(meshes)} "
        f"meshes of {n} ranks, in one all-reduce of 8 bytes. Well done."
    )


if __name__ == "__main__":
    check_exercise("22_mesh", verify)
