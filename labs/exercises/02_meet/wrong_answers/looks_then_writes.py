# rejected: all came, but meet raised DistStoreError: wait timeout after
"""Takes the first rank that is free; but another process may look in between."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    rank = 0
    while store.check([f"{rank}"]):
        rank += 1
    store.set(f"{rank}", address)
    store.set(me, "here")
    try:
        store.wait(names, timeout)
    except dist.DistStoreError:
        raise TimeoutError(", ".join(name for name in names if not store.check([name]))) from None
    return rank, [store.get(f"{r}").decode() for r in range(len(names))]
