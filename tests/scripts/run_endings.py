"""How ``shared.runtime.run.run`` ends: each case in a fork of its own, as rank RANK of 2. Prints JSON."""

import atexit
import json
import os
import sys
import tempfile
from collections.abc import Callable

from shared.runtime import run as lab
from shared.runtime.errors import CourseError, InputError
from shared.runtime.run import run

RANK = "1"


def deeper() -> None:
    raise ValueError("first line\nsecond line")


def exits(code: object) -> Callable[[], None]:
    return lambda: sys.exit(code)


def raises(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


def inner_failure() -> None:
    deeper()


CASES = {
    "success": lambda: print("done"),
    "atexit": lambda: atexit.register(print, "good-bye"),
    "exit 0": exits(None),
    "exit 3": exits(3),
    "exit text": exits("a last word"),
    "interrupt": raises(KeyboardInterrupt()),
    "exception": inner_failure,
    "course error": raises(CourseError("what to do")),
}


def ending(main: Callable[[], None], rank: str) -> dict[str, object]:
    """Exit code and output of ``run(main)`` in a child process."""
    with tempfile.TemporaryFile("w+") as file:
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = rank
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            run(main)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        file.seek(0)
        return {"code": os.waitstatus_to_exitcode(status), "text": file.read()}


if __name__ == "__main__":
    found = {name: ending(main, RANK) for name, main in CASES.items()}
    found["input error, rank 0"] = ending(raises(InputError("what is wrong")), "0")
    lab.INPUT_WAIT_S = 1  # no torchrun ends it
    found["input error, rank 1"] = ending(raises(InputError("what is wrong")), "1")
    json.dump(found, sys.stdout)
