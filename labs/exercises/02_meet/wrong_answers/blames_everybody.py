# rejected: the error names gus, who came
"""Knows that somebody is missing, not who."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    store.set(me, address)
    try:
        store.wait(names, timeout)
    except dist.DistStoreError:
        raise TimeoutError(f"not all came: {names}") from None
    by_rank = sorted(names)
    return by_rank.index(me), [store.get(name).decode() for name in by_rank]
