# rejected: is a bytes, expected a str
"""A store returns bytes."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    store.set(me, address)
    try:
        store.wait(names, timeout)
    except dist.DistStoreError:
        raise TimeoutError(", ".join(name for name in names if not store.check([name]))) from None
    by_rank = sorted(names)
    return by_rank.index(me), [store.get(name) for name in by_rank]
