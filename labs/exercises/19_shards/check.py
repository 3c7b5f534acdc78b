"""Check of exercise 19. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from types import ModuleType

import torch
import torch.distributed as dist

from shared.comm.record import record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group


def shapes(n: int) -> dict[str, torch.Size]:
    """Sizes that N divides and that it does not; with the last, ranks above 0 get nothing but padding."""
    return {
        "divides": torch.Size((2 * n, 3)),
        "one more": torch.Size((5 * n + 1,)),
        "a matrix": torch.Size((31, 7)),
        "tiny": torch.Size((1, n + 1)),
        "one": torch.Size((1, 1)),
    }


def verify(answer: ModuleType, group: Group) -> str:
    n, kept = group.world_size, 0
    for name, shape in shapes(n).items():
        numel = shape.numel()
        length = -(-numel // n)
        whole = torch.arange(1, numel + 1, dtype=torch.float64, device=group.device).view(shape)
        look_at(answer.shard(whole.clone()), whole, length, f"{name}, {numel} elements", group)
        mine = answer.shard(whole.clone())
        with record() as log:
            found = answer.gather(mine, shape)
        look_at_whole(found, whole, f"{name}, {numel} elements")
        made = dict(log.counts())
        if n > 1 and made != {"all_gather": 1}:
            raise Wrong(
                f"{name}: the whole is right, but gather made the calls {made}; one all-gather is enough"
            )
        kept += length
    return f"{len(shapes(n))} parameters, {kept} numbers on each of {n} ranks. Well done."


def look_at(mine: object, whole: torch.Tensor, length: int, name: str, group: Group) -> None:
    """Raise ``Wrong`` unless ``mine`` is this rank's shard, alone in its memory."""
    if not isinstance(mine, torch.Tensor) or mine.dim() != 1:
        raise Wrong(f"{name}: shard must return a tensor of one dimension")
    lengths = [None] * group.world_size
    dist.all_gather_object(lengths, len(mine))
    if len(set(lengths)) > 1:
        raise Wrong(f"{name}: the shards have {lengths} elements; all must be equally long")
    if len(mine) != length:
        raise Wrong(f"{name}: a shard has {len(mine)} elements, expected {length}")
    held = mine.untyped_storage().nbytes()
    if held != mine.nbytes:
        raise Wrong(f"{name}: the shard has {mine.nbytes} bytes, but keeps {held} alive: it is a view")
    flat = torch.cat([whole.flatten(), whole.new_zeros(group.world_size * length - whole.numel())])
    expected = flat[group.rank * length : (group.rank + 1) * length]
    if not torch.equal(mine, expected):
        raise Wrong(f"{name}: the shard is {mine.tolist()[:4]}..., expected {expected.tolist()[:4]}...")


def look_at_whole(found: object, whole: torch.Tensor, name: str) -> None:
    if not isinstance(found, torch.Tensor) or found.shape != whole.shape:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise Wrong(f"{name}: gather returns {shape}, expected {tuple(whole.shape)}")
    if not torch.equal(found, whole):
        off = (found != whole).sum().item()
        raise Wrong(f"{name}: {off} of {whole.numel()} elements of the whole are wrong")


if __name__ == "__main__":
    check_exercise("19_shards", verify)
