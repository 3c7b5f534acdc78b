# rejected: 3 processes took the ranks [0, 0, 0], expected [0, 1, 2]
"""The place in a list that is different for each process."""

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
    return names.index(me), [store.get(name).decode() for name in names]
