# rejected: 12 did not come, and meet raised DistStoreError; expected is TimeoutError
"""get waits as well, but with the store's own timeout, and it names a key."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    store.set(me, address)
    by_rank = sorted(names)
    return by_rank.index(me), [store.get(name).decode() for name in by_rank]
