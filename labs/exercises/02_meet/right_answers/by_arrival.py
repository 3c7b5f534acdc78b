# accepted: ranks by order of arrival, and the names ask only who is missing
"""Who comes first is rank 0."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    rank = store.add("arrived", 1) - 1
    store.set(f"rank {rank}", address)
    store.set(me, "here")
    try:
        store.wait([f"rank {r}" for r in range(len(names))], timeout)
    except dist.DistStoreError:
        missing = [name for name in names if not store.check([name])]
        raise TimeoutError(f"not here: {missing}") from None
    return rank, [store.get(f"rank {r}").decode() for r in range(len(names))]
