# accepted: it takes the first free rank, by a compare_set that looks and writes in one step
"""Looks for a free rank, and writes in the same step."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    rank = 0
    while store.compare_set(f"rank {rank}", "", address).decode() != address:
        rank += 1
    store.set(me, "here")
    try:
        store.wait(names, timeout)
    except dist.DistStoreError:
        missing = [name for name in names if not store.check([name])]
        raise TimeoutError(f"not here: {missing}") from None
    return rank, [store.get(f"rank {r}").decode() for r in range(len(names))]
