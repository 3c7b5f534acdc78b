"""What the processes that fork import once (``tests/launch.py``). Importing it in one of them prepares it."""

import atexit
import ctypes
import gc
import importlib
import os
import signal
import sys
import warnings
from multiprocessing.process import current_process
from pathlib import Path

PRELOADED = ("torch", "torch._dynamo", "torchvision", "sklearn.datasets", "psutil")
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
MAIN_PROCESS = current_process()
PATH = list(sys.path)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare() -> None:
    die_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a rank leaves behind becomes our child
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")  # such a child's
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("tests.launch")
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:  # a fork would copy locks that the others hold
        os.write(2, f"a process of {threads} threads must not fork\n".encode())
        os._exit(1)
    gc.collect()
    gc.freeze()  # the collector of a rank need not look at all of torch
    atexit.register(gc.unfreeze)  # at the end it must, or nanobind reports leaks


# In a fork server. Newer Pythons give it the ``sys.argv`` of the process that starts it.
if any("from multiprocessing.forkserver import main" in word for word in sys.orig_argv):
    prepare()
