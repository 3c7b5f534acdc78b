# accepted: it never waits in the store, it looks every few milliseconds until its own deadline
"""Polls under keys of its own, and puts all into one key."""

import time
from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    corner = dist.PrefixStore("meeting", store)
    corner.set(me, address)
    deadline = time.monotonic() + timeout.total_seconds()
    missing = set(names)
    while missing:
        missing = {name for name in missing if not corner.check([name])}
        if missing and time.monotonic() > deadline:
            raise TimeoutError("missing: " + " and ".join(sorted(missing)))
        time.sleep(0.01)
    order = sorted(names, reverse=True)
    addresses = tuple(corner.get(name).decode() for name in order)
    return order.index(me), addresses
