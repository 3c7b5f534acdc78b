"""Exercise 02: a rendezvous over a store, by hand."""

from datetime import timedelta

import torch.distributed as dist


def meet(
    store: dist.Store, me: str, address: str, names: list[str], timeout: timedelta
) -> tuple[int, list[str]]:
    """Find the other processes. Return my rank and the addresses of all, in rank order.

    Args:
        store: shared by all processes, empty at first. Its own timeout is longer than yours.
        me: my name.
        address: where I can be reached. So far only I know it.
        names: the names of all n processes, mine too, in another order for each process.
        timeout: how long to wait for the others, all of them together.

    The ranks are 0 .. n - 1, and all processes agree on who has which. The rule is up to you.

    Raises:
        TimeoutError: not all came in time. Its text names all who are missing, and nobody else.
    """
    # solution: begin
    store.set(me, address)
    try:
        store.wait(names, timeout)
    except dist.DistStoreError:
        missing = [name for name in names if not store.check([name])]
        if missing:
            raise TimeoutError(f"still missing: {', '.join(missing)}") from None
    by_rank = sorted(names)
    return by_rank.index(me), [store.get(name).decode() for name in by_rank]
    # solution: end
