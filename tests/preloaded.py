"""A process that ranks are forks of (``tests/launch.py``): ``python -m tests.preloaded ADDRESS``."""

import atexit
import gc
import importlib
import os
import sys
from pathlib import Path

PRELOADED = ("torch", "torch._dynamo", "torchvision", "sklearn.datasets")
STATUS = {"code": 0}


def leave() -> None:
    """End as Python ends, but for taking torch apart: that costs each rank two seconds of a processor."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(STATUS["code"])


def main() -> None:
    atexit.register(leave)  # before all imports that register something, so it is called last
    launch = importlib.import_module("tests.launch")
    launch.die_with_parent()
    for name in PRELOADED:
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:  # a fork would copy locks that the others hold
        sys.exit(f"a process of {threads} threads must not fork")
    gc.collect()
    gc.freeze()  # the collector of a rank need not look at all of torch
    atexit.register(gc.unfreeze)  # at the end it must, or nanobind reports leaks
    STATUS["code"] = launch.serve(sys.argv[1])


if __name__ == "__main__":
    main()
