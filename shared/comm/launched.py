"""The all-reduces that a rank really runs, also those that begin in C++. Taught in lesson 12."""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

NAMES = ("gloo:all_reduce", "nccl:all_reduce")
BYTES = {"double": 8, "float": 4, "int": 4, "long int": 8}


def all_reduces(function: Callable[[], None]) -> list[int]:
    """Call ``function``; return the bytes of each all-reduce that this rank runs in it, largest first.

    Collective: all ranks must call it.
    They run on several threads, so the moments at which they start say nothing of their order. The profiler
    sees them there, also those that DDP begins in C++ and that ``count_calls`` does not see.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would report that there is no GPU
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        function()
        dist.barrier()
        time.sleep(0.2)  # the threads note the ends of what they ran; the profiler drops what has none
    found = []
    for event in profiler.profiler.kineto_results.events():
        if event.name() in NAMES:
            (shape,), (dtype,) = event.shapes(), event.dtypes()
            found.append(torch.Size(shape).numel() * BYTES[dtype])
    return sorted(found, reverse=True)
