# rejected: after 5 s meet was still waiting
"""Gives each name the whole timeout; the twelve absent ones take twelve timeouts."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    store.set(me, address)
    missing = []
    for name in names:
        try:
            store.wait([name], timeout)
        except dist.DistStoreError:
            missing.append(name)
    if missing:
        raise TimeoutError(", ".join(missing))
    by_rank = sorted(names)
    return by_rank.index(me), [store.get(name).decode() for name in by_rank]
