"""Check of exercise 18. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from types import ModuleType

import torch
import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ALLOWED = 1.1
RANKS = (1, 2, 3, 4, 8)  # the answer is asked for all of them, however many ranks check it


def empty(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Tensors that take no memory."""
    return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


def cases() -> dict[str, list[torch.Tensor]]:
    block = ((256, 768), (256,), (256, 256), (256,), (1024, 256), (1024,), (256, 1024), (256,))
    widths = [(16 * i, 64) for i in range(1, 49)]
    mixed = [p for dtype in 16 * (torch.bfloat16, torch.float32) for p in empty((512, 512), dtype=dtype)]
    return {
        "a transformer": empty((1000, 256), *(12 * block)),
        "a net that widens": empty(*widths),
        "a large embedding": empty((50_000, 256), *(4 * block)),
        "bfloat16 and float32": mixed,
        "five tensors": empty(*[(10, 10)] * 5),
    }


def look_at(owned: object, count: int, ranks: int, what: str) -> None:
    """Raise ``Wrong`` unless ``owned`` holds each position once, in one list for each rank."""
    if not isinstance(owned, list) or len(owned) != ranks or not all(isinstance(one, list) for one in owned):
        raise Wrong(f"{what}: partition must return a list of {ranks} lists of positions")
    taken = sorted(index for one in owned for index in one)
    if missing := sorted(set(range(count)) - set(taken)):
        raise Wrong(f"{what}: parameter {missing[0]} has no owner, so nobody would ever update it")
    if len(taken) != count:
        raise Wrong(f"{what}: {len(taken)} positions for {count} parameters, so one has two owners")


def verify(answer: ModuleType, group: Group) -> str:
    fullest = {}
    for name, params in cases().items():
        for ranks in RANKS:
            what = f"{name}, {ranks} ranks"
            owned = answer.partition(params, ranks)
            look_at(owned, len(params), ranks, what)
            chosen = [None] * group.world_size
            dist.all_gather_object(chosen, owned)
            if chosen[0] != owned:
                raise Wrong(f"{what}: rank {group.rank} has another partition than rank 0")
            loads = [sum(params[i].nbytes for i in one) for one in owned]
            target = max(sum(loads) / ranks, max(p.nbytes for p in params))
            if name == "five tensors":  # too few to be even
                target = -(-len(params) // ranks) * params[0].nbytes
            if max(loads) > ALLOWED * target:
                raise Wrong(
                    f"{what}: rank {loads.index(max(loads))} owns {max(loads):,} bytes, "
                    f"allowed are {ALLOWED * target:,.0f}"
                )
            fullest[ranks] = max(fullest.get(ranks, 0.0), max(loads) / target)
    worst = max(fullest.values())
    return f"5 models for {list(RANKS)} ranks, the fullest rank {worst - 1:.1%} above the target. Well done."


if __name__ == "__main__":
    check_exercise("18_partition", verify)
