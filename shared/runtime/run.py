"""The one door through which every rank of a lab passes: ``run(main, cfg)``. Taught in lesson 00."""

import atexit
import ctypes
import gc
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from shared.runtime import last_words
from shared.runtime.errors import CourseError, InputError, neighbour_is_gone

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ECHO_WAIT_S = 5
INTERRUPTED = 130  # exit code of a shell after Ctrl-C
INPUT_WAIT_S = 20  # rank 0 may still be importing torch
OUTER_FRAMES = (str(Path(__file__)), str(Path("multiprocessing/errors/__init__.py")))  # of run and record


def die_with_launcher() -> None:
    """Have Linux kill this process when its launcher dies, even by SIGKILL; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(main: Callable, *args) -> None:
    """Call ``main(*args)`` as the body of a lab and leave the process cleanly.

    - Success: exit code 0. The group is destroyed first.
    - ``CourseError``: its text in one line, exit code 1. For an ``InputError`` rank 0 speaks for all.
    - Any other exception: the traceback, each line marked with the rank, exit code 1.
    - An error that only echoes another rank's: wait, so that torchrun names the rank that failed first.
    - ``SystemExit``: its own code.

    After ``atexit`` the process ends without the interpreter's own shutdown. There, gloo's threads may
    still ask for the interpreter, and a script aborts at random with exit code -6, whatever it had
    achieved. With DDP these threads outlive ``destroy_process_group()``, too. (pytorch/pytorch#190489 is
    about scripts that do not call it.)

    torch's ``record`` writes the error to the file that torchrun names, so torchrun's summary shows the
    cause. A lab that is no rank and does without torch is not made to wait for torch here.
    """
    die_with_launcher()
    # torchrun starts workers with `python -u`: one print is two writes, and lines of two ranks mix.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(write_through=False, line_buffering=True)
    try:
        _recorded(_without_echo)(main, *args)
        _clean_up()
        code = 0
    except SystemExit as error:
        code = _code_of(error)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException as error:
        _complain(error)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _clean_up() -> None:
    """What the interpreter's own shutdown would do."""
    dist = sys.modules.get("torch.distributed")
    if dist and dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    atexit._run_exitfuncs()  # multiprocessing and others clean up there


def _code_of(error: SystemExit) -> int:
    """The exit code that Python itself would end with; a text is printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return 1


def _recorded(function: Callable) -> Callable:
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return function  # nobody would read it
    from torch.distributed.elastic.multiprocessing.errors import record

    return record(function)


def _sleep(seconds: int) -> None:
    """Sleep in short pieces: if the machine stands still, the launcher is to wake up first."""
    for _ in range(10 * seconds):
        time.sleep(0.1)


def _without_echo(main: Callable, *args) -> None:
    try:
        main(*args)
    except RuntimeError as error:
        if neighbour_is_gone(error):
            _sleep(ECHO_WAIT_S)  # torchrun ends this rank meanwhile, if another one failed
        raise


def _complain(error: BaseException) -> None:
    rank = os.environ.get("RANK", "")
    mark = f"[rank {rank}] " if rank else ""
    if isinstance(error, InputError):
        if rank not in ("", "0"):
            _sleep(INPUT_WAIT_S)  # torchrun ends this rank as soon as rank 0 has spoken
            return
        text = str(error)
        last_words.keep(text)
    elif isinstance(error, CourseError):
        text = mark + str(error)
        last_words.keep(text)
    else:
        frames = _own_frames(error.__traceback__)
        lines = "".join(traceback.format_exception(type(error), error, frames)).rstrip().splitlines()
        text = "\n".join(mark + line for line in lines)
        last_words.keep(mark + lines[-1])
    sys.stderr.write(text + "\n")  # one write, so that ranks do not mix


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback that begins with the lab's own lines, without those of ``run``."""
    while frames and frames.tb_next and frames.tb_frame.f_code.co_filename.endswith(OUTER_FRAMES):
        frames = frames.tb_next
    return frames
