# rejected: but its address stands in another place
"""Ranks by arrival, addresses by name."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    rank = store.add("arrived", 1) - 1
    store.set(me, address)
    try:
        store.wait(names, timeout)
    except dist.DistStoreError:
        raise TimeoutError(", ".join(name for name in names if not store.check([name]))) from None
    return rank, [store.get(name).decode() for name in sorted(names)]
