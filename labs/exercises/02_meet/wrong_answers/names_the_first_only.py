# rejected: did not come, but the error does not say so
"""Stops at the first name that is missing."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    store.set(me, address)
    for name in sorted(names):
        try:
            store.wait([name], timeout)
        except dist.DistStoreError:
            raise TimeoutError(f"{name} is missing") from None
    by_rank = sorted(names)
    return by_rank.index(me), [store.get(name).decode() for name in by_rank]
