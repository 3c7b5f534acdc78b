"""What goes wrong with calls, what the caller hears of it, and a shutdown that somebody leaves out.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_23_faults.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import io
import logging
import os
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.rpc.constants import DEFAULT_RPC_TIMEOUT_SEC

from shared.comm.rpc import start_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    patience_s: float = 0.5
    slow_s: float = 1.5
    shutdown_s: int = 2  # the default, 0, waits without end
    store_s: float = 3.0  # the timeout of calls, which shutdown's last wait has as well


FINISHED: list[float] = []


class NoSuchRow(Exception):
    """An error of our own."""


def fail(kind: type[Exception]) -> None:
    raise kind("there is no row 7")


def sleep(seconds: float) -> None:
    time.sleep(seconds)
    FINISHED.append(seconds)


def finished() -> int:
    return len(FINISHED)


if os.environ.get("RANK") == "0":

    def only_on_rank_0() -> None:
        """The other workers' file has no such function."""


def heard(call: Callable, kind: str, *expected: str) -> str:
    """What the caller hears: ``call`` must raise an error of this kind ("" for any) that says all of this."""
    try:
        call()
    except Exception as error:
        if kind not in ("", type(error).__name__) or not all(part in str(error) for part in expected):
            raise CourseError(f"expected was {kind} with {expected!r}, heard {error!r}") from error
        return " ... ".join([f"{kind or 'an error'}:", *expected])
    raise CourseError("an error was expected, but the call returned")


def faults(there: str, cfg: Config) -> dict[str, str]:
    """{what is wrong with the function: what the caller hears}, all asserted."""

    def call(function: Callable, *args, to: str = there, timeout: float = 3.0) -> Callable:
        return lambda: rpc.rpc_sync(to, function, args=args, timeout=timeout)

    rows = {}
    for kind in (ValueError, TypeError, RuntimeError):  # these three keep their type
        text = f"{kind.__name__}('there is no row 7')"
        rows[f"it raises {kind.__name__}"] = heard(call(fail, kind), kind.__name__, text)
    for kind in (IndexError, OSError, NotImplementedError, NoSuchRow):
        text = f"{kind.__name__}('there is no row 7')"
        rows[f"it raises {kind.__name__}"] = heard(call(fail, kind), "RuntimeError", text)
    rows |= {
        "only we have it": heard(call(only_on_rank_0), "RuntimeError", "AttributeError", "'only_on_rank_0'"),
        "it is a lambda": heard(call(lambda: 1), "", "<lambda>"),
        "it takes too long": heard(
            call(sleep, cfg.slow_s, timeout=cfg.patience_s),
            "RuntimeError",
            "RPC ran for more than set timeout",
        ),
        "nobody has that name": heard(
            call(finished, to="nobody"), "RuntimeError", "could not find destination"
        ),
    }
    end = time.monotonic() + 10
    while rpc.rpc_sync(there, finished) == 0 and time.monotonic() < end:
        time.sleep(0.1)
    if rpc.rpc_sync(there, finished) != 1:
        raise CourseError("the function that took too long was to run to its end")

    call(sleep, cfg.slow_s, timeout=0)()  # 0 means: no limit
    if rpc.rpc_sync(there, finished) != 2:
        raise CourseError("with timeout=0 the call was to wait for the function's end")
    rows["timeout=0"] = f"no error: the call waited; the default is {DEFAULT_RPC_TIMEOUT_SEC:.0f} s"
    return rows


def leave(group: Group, cfg: Config) -> str:
    """All but the last worker call ``shutdown()``; returns what each hears."""
    if group.rank == group.world_size - 1:
        return ""
    logging.getLogger("torch.distributed.rpc.api").setLevel(logging.CRITICAL)  # it logs the traceback, too
    try:
        rpc.shutdown(timeout=cfg.shutdown_s)
    except Exception as error:
        text = str(error).splitlines()[0]
        if any(words in text for words in ("wait timeout", "timed out", "RPC ran for more", "onnection")):
            return text
        raise
    raise CourseError("shutdown() returned, though the last worker was still there")


def main(cfg: Config) -> None:
    with process_group(smallest=2, timeout_s=30) as group:
        workers = start_workers(group, timeout_s=cfg.store_s)
        with redirect_stderr(io.StringIO()):  # the callee writes the whole traceback
            dist.barrier()
            if group.rank == 0:
                for what, text in faults(workers[1], cfg).items():
                    print(f"{what:29} {text}")
            dist.barrier()
        message = leave(group, cfg)
        dist.barrier()  # by now the others have given up
        if group.rank == group.world_size - 1:
            rpc.shutdown(graceful=False)  # leaves without waiting for anyone
        print_in_rank_order("shutdown() waited and gave up" if message else "I never called shutdown()")
        record_results("lab_23_faults", {"said": message})


if __name__ == "__main__":
    run(main, Config())
