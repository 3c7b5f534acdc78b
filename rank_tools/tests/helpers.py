"""What several test files need: an environment, commands, processes found by a mark, a free port."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rank_tools"
HANGS = Path(__file__).parent / "hangs"
TOOLS = ("checklist", "doctor", "planner", "replay")
Done = subprocess.CompletedProcess
HANG_S = 600  # bounds a hang; nothing is measured with it
HERE = "127.0.0.1"
# What shells, launchers and test runners set, and what would change a line that is printed.
UNWANTED = ("COLUMNS", "FORCE_COLOR", "LANG", "LC_", "MASTER_", "PYTEST_", "PYTHON", "TORCH")
OF_LAUNCHERS = {f"{whose}{what}" for whose in ("", "LOCAL_", "GROUP_") for what in ("RANK", "WORLD_SIZE")}


@cache
def scratch() -> tempfile.TemporaryDirectory:
    """Where commands leave their temporary files: torchrun leaves a folder behind in each run."""
    return tempfile.TemporaryDirectory(prefix="rank-tools-tests-", ignore_cleanup_errors=True)


def environment(**more: str) -> dict[str, str]:
    """``python`` is this one, and ``rank_tools`` the one beside these tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(UNWANTED)}
    kept = {name: value for name, value in kept.items() if name not in OF_LAUNCHERS}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    fixed = {"PATH": path, "PYTHONPATH": str(ROOT), "TMPDIR": scratch().name}
    return {**kept, **fixed, "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **more}


def command(*parts: str | Path, cwd: Path = ROOT, **variables: str) -> Done:
    """Run a command to its end; ``stdout`` holds both streams as text."""
    return subprocess.run(
        [str(part) for part in parts],
        cwd=cwd,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=HANG_S,
    )


def python(*parts: str | Path, **options) -> Done:
    return command(sys.executable, *parts, **options)


def processes_with(mark: str) -> list[int]:
    """The other processes with ``mark`` in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            has_ended = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue  # it has ended meanwhile, or is not ours
        if not has_ended and mark.encode() in words:
            found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, f"waited {HANG_S} s until {what}"
        time.sleep(0.1)


def free_port() -> int:
    """A port that rests in TIME_WAIT: for a minute Linux gives it to nobody but a server that names it."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HERE, 0))
        server.listen(1)
        port = server.getsockname()[1]
        with socket.create_connection((HERE, port)):
            server.accept()[0].close()  # the side that closes first is the one that waits
        return port
