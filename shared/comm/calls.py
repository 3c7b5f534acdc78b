"""How often this process calls a collective. Taught in lesson 06."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import torch.distributed as dist

_NAMES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce"),
    *("all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast"),
    *("broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv"),
    *("reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter"),
    *("scatter_object_list", "send"),
)
CALLS = tuple(name for name in _NAMES if hasattr(dist, name))  # all ways to communicate that this torch has


@contextmanager
def count_calls(*names: str) -> Iterator[Counter]:
    """Count calls of ``dist.NAME`` for each of ``names`` while the context is open.

    The functions themselves are wrapped, so the count does not come from a formula. What was imported by
    ``from torch.distributed import NAME`` before, and what torch calls inside, is not seen.
    """
    calls: Counter = Counter(dict.fromkeys(names, 0))

    def counting(name: str, function: Callable) -> Callable:
        @wraps(function)
        def wrapper(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return wrapper

    originals = {name: getattr(dist, name) for name in names}
    try:
        for name, function in originals.items():
            setattr(dist, name, counting(name, function))
        yield calls
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)
