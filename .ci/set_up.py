"""Make an environment and install packages into it; a failure is one line that says what to do.

    python3 .ci/set_up.py .venv/.installed PIP-ARGUMENT ...

The folder of the file that is named first is the environment; the file is written when all is installed. A
call goes on where an earlier one was interrupted. The Makefile calls this with whatever Python there is: it
needs the standard library of Python 3.6. TORCH_INDEX is the address of another index to take torch from.
"""

import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import NoReturn

OLDEST, NEWEST, LEFT_OUT = (3, 11), (3, 14), (3, 14, 1)  # as pyproject.toml says
OTHERS = ("python3.14", "python3.13", "python3.12", "python3.11")
CURE = "install Python 3.11 to 3.14 with venv (Debian, Ubuntu: apt install python3-venv)"
FOR_GPUS, FOR_CPUS = (3.3, 6.7), (0.5, 2)  # GB of download, which pip's cache keeps, and of the environment
NO_GPU = (
    "no NVIDIA GPU is seen: 0.5 GB are enough with `make lab TORCH_INDEX=ADDRESS`, where ADDRESS is what "
    "pytorch.org shows after --index-url under Get started, CPU"
)


def stop(line: str) -> NoReturn:
    sys.exit("set-up: " + line)


def say(line: str) -> None:
    print("set-up: " + line, flush=True)


def unfit(python: str, needed: str) -> str:
    """Why a Python cannot be taken, or an empty text. It must be able to execute ``needed``."""
    code = "import sys; print(*sys.version_info[:3], flush=True); " + needed
    try:
        child = Popen([python, "-c", code], stdout=PIPE, stderr=DEVNULL, encoding="utf-8")
        version = tuple(int(number) for number in child.communicate()[0].split())
    except (OSError, ValueError):
        version = ()
    if len(version) != 3:
        return "does not start"
    why = "" if child.returncode == 0 else "which has no venv"
    if version[:2] < OLDEST:
        why = "which is too old"
    if version[:2] > NEWEST:
        why = "which is too new for torch's packages"
    if version == LEFT_OUT:
        why = "the one version that torchvision leaves out"
    return why and "is Python {}.{}.{}, ".format(*version) + why


def find_python() -> str:
    """The Python that runs this, or the newest on PATH that fits."""
    needed = "import venv, ensurepip"
    reason = unfit(sys.executable, needed)
    if not reason:
        return sys.executable
    for name in OTHERS:
        other = shutil.which(name)
        if other and not unfit(other, needed):
            say(f"{sys.executable} {reason}; {other} is taken")
            return other
    stop(f"{sys.executable} {reason}: {CURE}, or name one that you have, as in `make lab PYTHON=python3.12`")


def announce(venv: Path, index: str) -> None:
    """Say what is going to be downloaded, while there is time to choose; stop where the disk is too small."""
    download, disk = FOR_CPUS if index else FOR_GPUS
    say(f"{download} GB to download, {download + disk:g} GB of disk with pip's cache; minutes, once")
    gpu = Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")
    if not index and not gpu:
        say(NO_GPU)
    free = shutil.disk_usage(str(venv if venv.is_dir() else venv.resolve().parent)).free / 1e9
    if free < disk:
        stop(f"{free:.1f} GB are free for {venv.resolve()}: make room, then call again")


def make(venv: Path, log: Path, python: str) -> None:
    """Make an environment, in place of what an earlier call left; what others made is left alone."""
    contents = list(venv.iterdir()) if venv.is_dir() else []
    if contents and not log.exists() and not (venv / ".installed").exists():
        stop(f"{venv} was not made by this course and cannot be used: move it away, then call again")
    shutil.rmtree(str(venv), ignore_errors=True)
    venv.mkdir(exist_ok=True)
    log.touch()  # from here on, the folder is ours
    # The program itself, not a link that means another Python after an upgrade of the system.
    run([os.path.realpath(python), "-m", "venv", str(venv)], log)


def run(command: list, log: Path) -> None:
    """Run a command to its end with its output in the log, and tell of large downloads."""
    lines = []
    child = Popen(command, stdout=PIPE, stderr=STDOUT, encoding="utf-8", errors="replace")
    try:
        with log.open("a", encoding="utf-8") as file:
            for line in child.stdout:
                lines.append(line)
                file.write(line)
                file.flush()
                large = re.search(r"Downloading (?:\S*/)?(\w+)-\S+ \((\d{3,})\.\d MB\)", line)
                if large:
                    say("downloading {}, {} MB".format(*large.groups()))
        failed = child.wait() != 0
    finally:
        child.terminate()
        child.wait()
    if failed:
        explain("".join(lines), log)


def explain(output: str, log: Path) -> NoReturn:
    """End with what to do about the command that printed ``output``."""
    free = min(shutil.disk_usage(place).free for place in (str(log.parent), tempfile.gettempdir()))
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if "No space left on device" in output or free < 20e6:
        problem = "the disk is full: make room, then call again"
    elif "Retrying (Retry(" in output:
        problem = "the package index does not answer: look at the network, then call again"
    elif missing:
        problem = f"the package index has no {missing.group(1)} for this Python and this system"
    else:
        errors = re.findall(r"^ERROR: (.*)$", output, re.MULTILINE) or output.splitlines() or ["no output"]
        problem = "it failed: " + errors[-1].strip()
    stop(f"{problem} (all of the output: {log})")


def main(mark: Path, arguments: list) -> None:
    venv = mark.parent
    log = venv / "set_up.log"
    own = str(venv / "bin" / "python")
    index = os.environ.get("TORCH_INDEX", "")
    versions = "".join(Path(name).read_text() for name in arguments if name.endswith(".txt"))
    torch = re.findall(r"^torch\w*==\S+", versions, re.MULTILINE)

    for package in venv.glob("lib/python*/site-packages/*.dist-info"):
        if (
            log.exists() and not (package / "INSTALLER").exists()
        ):  # pip writes it last: this one was interrupted
            shutil.rmtree(str(package))
    python = find_python() if unfit(own, "from importlib.metadata import version; version('pip')") else ""
    if torch and not list(venv.glob("lib/python*/site-packages/torch-*.dist-info")):
        announce(venv, index)
    if python:
        make(venv, log, python)
    log.write_text("")
    if list(venv.glob("lib/python*/site-packages/rank_by_rank-*.dist-info/entry_points.txt")):
        # Of 2.0.0, which owned the commands that rank_tools brings now, and would take them along.
        run([own, "-m", "pip", "uninstall", "--yes", "rank-by-rank"], log)
    pip = [own, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    if index and torch:
        run([*pip, "--no-deps", "--index-url", index, *torch], log)
    run([*pip, *arguments], log)
    mark.touch()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except KeyboardInterrupt:
        stop("interrupted; the next call goes on")
    except OSError as error:
        stop(f"{error}: make room or look at the rights of the folder, then call again")
