# rejected: 3 processes took the ranks [1, 2, 3], expected [0, 1, 2]
"""store.add returns 1 to the first."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    rank = store.add("arrived", 1)
    store.set(f"{rank}", address)
    store.set(me, "here")
    try:
        store.wait(names, timeout)
    except dist.DistStoreError:
        raise TimeoutError(", ".join(name for name in names if not store.check([name]))) from None
    return rank, [store.get(f"{r}").decode() for r in range(1, len(names) + 1)]
