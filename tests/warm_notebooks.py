"""Under nbmake most labs of a notebook run in forks of a process that has torch already.

``!torchrun --standalone --nproc-per-node=N LAB ...`` and ``!python LAB ...`` meet functions of the shell,
which ask the server below. These are launched as for a reader:

- the first lab of each notebook, and the labs in ``COLD``,
- a command with other options, and one whose environment differs in what torch reads when it is imported,
- each command that fails when it is warm: then it is run again, and only what that prints counts,
- everything with RANK_BY_RANK_NOTEBOOKS=cold (``make test-cold``).

The outputs that nbmake compares with were made as a reader makes them: ``make refresh`` knows nothing of it.
"""

import json
import os
import socketserver
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

from shared.tools.outputs import OVERWRITTEN
from tests.helpers import SCRIPTS, environment
from tests.launch import LINUX, SERVERS, Job, run_job

CHOICE = "RANK_BY_RANK_NOTEBOOKS"
SOCKET = "RANK_BY_RANK_WARM"
HOW_MANY = "--nproc-per-node="
READ_AT_IMPORT = ("ATEN_", "GLOO_", "KMP_", "MKL_", "NCCL_", "OMP_", "ONEDNN_", "PYTHON", "PYTORCH_", "TORCH")
NOT_NEEDED_COLD = {
    "PYTHONPATH",  # a fork looks for modules where it says
    "TORCHINDUCTOR_CACHE_DIR",  # torch sets it itself: an optimizer in the kernel is enough
}
KERNEL = "RANK_BY_RANK_RESULTS"  # of each kernel its own
COLD = {
    "lab_01_reports.py": "looks for torchrun's agent in its parent",
}


class Server(socketserver.UnixStreamServer):
    """One request a connection, a line of JSON each way: {"program", "arguments", "folder", "environment",
    "splits": whether stdout and stderr go to different places} to {"warm": whether it ran and succeeded,
    "output", "errors"}.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "socket"), Request)
        self.known_kernels: set[str] = set()

    def answer(
        self,
        program: str,
        arguments: list[str],
        folder: str,
        variables: dict[str, str],
        splits: bool = False,
    ) -> dict:
        job = job_of(program, arguments, Path(folder), variables)
        kernel = variables.get(KERNEL, "")
        first = kernel not in self.known_kernels
        if program == "torchrun":
            self.known_kernels.add(kernel)
        if job is None or first:
            return {"warm": False, "output": "", "errors": ""}
        done = run_job(replace(job, splits=splits))
        # A terminal would show only the last frame of a progress bar, and nbclient keeps no other one.
        output, errors = (OVERWRITTEN.sub("", text or "") for text in (done.stdout, done.stderr))
        return {"warm": done.returncode == 0, "output": output, "errors": errors}


class Request(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        answer = self.server.answer(
            asked["program"], asked["arguments"], asked["folder"], asked["environment"], asked["splits"]
        )
        self.wfile.write((json.dumps(answer) + "\n").encode())


def job_of(program: str, arguments: list[str], folder: Path, variables: dict[str, str]) -> Job | None:
    """The warm job that does what ``PROGRAM ARGUMENTS`` does, or None where only the program can do it."""
    ranks = "0"
    if program == "torchrun":
        if len(arguments) < 3 or arguments[0] != "--standalone" or not arguments[1].startswith(HOW_MANY):
            return None
        ranks = arguments[1].removeprefix(HOW_MANY)
        arguments = arguments[2:]
        if not ranks.isdecimal() or ranks == "0":
            return None
    if not arguments:
        return None
    script = folder / arguments[0]
    if script.suffix != ".py" or not script.is_file() or script.name in COLD:
        return None
    of_fork = environment()
    for name in {*variables, *of_fork} - NOT_NEEDED_COLD:
        if name.startswith(READ_AT_IMPORT) and variables.get(name) != of_fork.get(name):
            return None
    return Job(script.resolve(), arguments[1:], int(ranks), variables, folder, keeps_returns=True)


class WarmNotebooks:
    """A server in a thread of this process, and the variables that lead a notebook's shell to it."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.before: dict[str, str | None] = {}

    def start(self) -> None:
        if not LINUX or os.environ.get(CHOICE) == "cold" or os.environ.get(SOCKET):
            return
        SERVERS.start()  # here: they die with the thread that starts them
        self.folder = tempfile.TemporaryDirectory(prefix="warm-")
        self.server = Server(Path(self.folder.name))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.before = {name: os.environ.get(name) for name in ("BASH_ENV", SOCKET, "RANK_BY_RANK_PYTHON")}
        os.environ["BASH_ENV"] = str(SCRIPTS / "warm_shell.sh")  # bash reads it before each command
        os.environ[SOCKET] = str(self.server.server_address)
        os.environ["RANK_BY_RANK_PYTHON"] = sys.executable

    def stop(self) -> None:
        if self.server is None:
            return
        for name, value in self.before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self.server.shutdown()
        self.server.server_close()
        self.folder.cleanup()
        self.server = None
