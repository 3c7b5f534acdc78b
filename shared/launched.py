"""The all-reduces that a rank really runs, also those that begin in C++. Taught in lesson 12."""

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

NAMES = ("gloo:all_reduce", "nccl:all_reduce")
BYTES = {"double": 8, "float": 4, "int": 4, "long int": 8}


def all_reduces(function: Callable[[], None]) -> list[int]:
    """Call ``function``; return the bytes of each all-reduce that this rank runs meanwhile, in order.

    The profiler sees them on the backend's own threads. So those are counted that DDP begins in C++, which
    ``shared.calls.count_calls`` and a communication hook do not see.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would report that there is no GPU
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        function()
    found = []
    for event in profiler.profiler.kineto_results.events():
        if event.name() in NAMES:
            (shape,), (dtype,) = event.shapes(), event.dtypes()
            found.append((event.start_ns(), torch.Size(shape).numel() * BYTES[dtype]))
    return [size for _, size in sorted(found)]
