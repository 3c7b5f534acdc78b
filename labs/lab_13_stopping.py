"""How the ranks of a job stop together, to copy into any training loop.

A module, which needs torch. ``lab_10_train.py`` uses it.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_train.py --epochs 2
Written by:  notebooks/13_elastic.ipynb (edit it there)
"""

import ctypes
import gc
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
SAVED_AND_LEFT = 75  # an exit code: EX_TEMPFAIL of sysexits.h, "try again later"
LEAVE_S = 60.0  # that a rank which has failed waits for the save under way
FIRST_SAYS_S = 20.0  # that the other ranks of a machine wait for the first, which may still import torch


class WrongStart(Exception):
    """The ranks were started in a way that cannot work; its text says how to start them."""


SAVE, STOP = 1, 2  # what a rank may ask of all


class StopSign:
    """Whether some rank was asked to stop: by Ctrl-C, a scheduler's SIGTERM or SIGUSR1, a lost terminal.

    Also whether it is time to save, every ``save_every_s`` seconds. A signal reaches the ranks at different
    steps, but all must leave after the same one. So each step asks all ranks, and reads the answer in the
    next one. ``group``: a gloo group of its own, which connects all ranks by sockets, on the network card
    that GLOO_SOCKET_IFNAME names, or that of the host's name.
    """

    def __init__(self, group: dist.ProcessGroup, save_every_s: float = math.inf) -> None:
        self.group = group
        self.save_every_s = save_every_s
        self.save_at = time.monotonic() + save_every_s
        self.save_now = False  # the same on all ranks, after ``seen_by_all``
        self.asked = False
        self.answer = torch.zeros(1, dtype=torch.int32)
        self.work = None
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup has SIGHUP ignored
                signal.signal(number, self.note)

    def note(self, number: int, frame: object) -> None:
        self.asked = True

    def seen_by_all(self) -> bool:
        """Whether all ranks are to stop now. Collective, once a step or batch; the same answer everywhere."""
        self.finish()
        seen = int(self.answer)
        self.save_now = seen == SAVE
        if self.save_now:
            self.save_at = time.monotonic() + self.save_every_s
        wish = STOP if self.asked else SAVE if time.monotonic() >= self.save_at else 0
        self.answer = torch.tensor([wish], dtype=torch.int32)
        self.work = dist.all_reduce(self.answer, dist.ReduceOp.MAX, group=self.group, async_op=True)
        return seen == STOP

    def finish(self) -> None:
        if self.work:
            self.work.wait()


def ignore_signals(worker: int) -> None:
    """For processes that load data: torchrun signals them, too, and their rank needs them to the end."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_launcher() -> None:
    """On Linux, have the kernel end this rank with its launcher, even after kill -9 of that."""
    if sys.platform == "linux" and "LOCAL_RANK" in os.environ:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG of linux/prctl.h


def store_of_this_attempt(timeout: timedelta) -> dist.Store:
    """A store with keys of its own for each restart: torchrun's still holds the addresses of dead ranks.

    On several machines agents count restarts differently, so there each attempt needs a new store.
    """
    if "MASTER_ADDR" not in os.environ:
        return dist.HashStore()  # one process, started without torchrun
    is_torchruns = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    one_machine = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if is_torchruns and not one_machine and os.environ.get("TORCHELASTIC_MAX_RESTARTS") != "0":
        raise WrongStart("several machines: start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    serves = not is_torchruns and os.environ["RANK"] == "0"
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=serves, timeout=timeout)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if one_machine else "any"
    return dist.PrefixStore(f"attempt {attempt}", store)


def leave_failed() -> NoReturn:
    """Leave with exit code 1 when the save under way has ended, or after ``LEAVE_S``: its thread may wait for
    rank 0, whose training waits for this rank to go."""
    give_up = threading.Timer(LEAVE_S, os._exit, [1])
    give_up.daemon = True
    give_up.start()
    sys.exit(1)


def run_rank(main: Callable[[], int], refused: tuple[type[Exception], ...]) -> int:
    """Call ``main``; return the exit code of this rank: that of ``main``, or 2 if it raised ``refused``."""
    try:
        die_with_launcher()
        code = main()
        dist.barrier()
    except (WrongStart, *refused) as error:
        code = 2
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one line for each machine
            print(error, file=sys.stderr)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun ends all ranks when one has ended
            time.sleep(FIRST_SAYS_S)
            print(error, file=sys.stderr)  # the first has not said it
    except Exception:
        traceback.print_exc()
        leave_failed()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()  # DDP and its hooks form a cycle; if the dying interpreter ends it, that may abort with -6
    return code
