"""The one call at the top of each notebook. Taught in lesson 00. Imports no torch: that takes a second."""

import atexit
import importlib
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from shared.runtime import environment, last_words
from shared.runtime.errors import CourseError, InputError
from shared.runtime.writing import write_cell

COMMAND_NOT_FOUND = 127  # exit code of a shell
RANKS = 4  # most labs have so many or fewer
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # Linux, Windows Subsystem for Linux, ROCm
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def find_root(start: Path) -> Path:
    """The checkout that ``start`` lies in, else the one that this package belongs to."""
    for folder in (start, *start.parents):
        if (folder / "shared" / "runtime" / "notebook.py").is_file() and (folder / "notebooks").is_dir():
            return folder
    return PACKAGE_ROOT


def setup() -> None:
    """Prepare this notebook's kernel. Call it first; a second call changes nothing.

    - The working directory becomes ``notebooks/``, wherever the kernel was started.
    - ``torchrun`` and ``python`` are those of this kernel's environment, and import this checkout.
    - A command after ``!`` that fails, also inside a pipe, fails its cell and so the notebook. What a lab or
      a check said last is said again below torchrun's summary.
    - So does a command that is interrupted, whatever its exit code.
    - Results that labs record go to a folder of this kernel's own.
    - ``%%writefile`` puts no stub over an answer, and keeps a lab that was edited by hand.
    - With ``RANK_BY_RANK_DEVICE=cpu``, commands see no GPU. With fewer GPUs than most labs have ranks, this
      says so and sets that.

    Raises:
        CourseError: outside of a notebook, or IPython is too old.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        raise CourseError("notebook.setup() is for notebooks; start a lab with torchrun")
    root = find_root(Path.cwd().resolve())
    if root != PACKAGE_ROOT:  # `shared` was installed from another checkout: use this one's
        for name in [name for name in sys.modules if name.split(".")[0] == "shared"]:
            del sys.modules[name]
        sys.path[:] = [str(root), *(path for path in sys.path if path != str(PACKAGE_ROOT / "labs"))]
        module = importlib.import_module("shared.runtime.notebook")
        shell.user_ns["notebook"] = module  # the name that the first cell gave to this one
        module.setup()
        return
    if not shell.has_trait("system_raise_on_error"):
        raise CourseError("IPython is too old to notice a failing command: pip install -U 'ipython>=9.13'")
    os.chdir(root / "notebooks")
    _set_environment(root)
    shell.system_raise_on_error = True
    runner: Any = sys.modules[type(shell).__module__]  # what `!` calls is a name of the kernel's module
    if hasattr(runner, "system") and not hasattr(runner.system, "tells_interrupts"):
        runner.system = _telling_interrupts(runner.system)
    shell.set_custom_exc((CalledProcessError, CourseError), _show_in_one_line)
    shell.events.register("pre_run_cell", lambda info: last_words.forget())
    shell.register_magic_function(_writefile, magic_kind="cell", magic_name="writefile")


def world_size(value: object, smallest: int = 1, largest: int = 8, name: str = "WORLD_SIZE") -> int:
    """Return ``value`` if it is a number of ranks that the lesson can run with, else raise ``InputError``."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise InputError(f"{name} must be a whole number from {smallest} to {largest}, not {value!r}")
    return value


def log_file(name: str) -> str:
    """Path of a file for a command's output, in the folder of this kernel's results."""
    return str(Path(os.environ["RANK_BY_RANK_RESULTS"]) / name)


def replay(lab: str, ranks: int, *arguments: str, hangs_after: float | None = None) -> None:
    """Run ``labs/{lab}.py`` on so many ranks, and show what each did; see ``shared.runtime.replay.show``."""
    from shared.runtime.replay import show

    show(lab, ranks, *arguments, hangs_after=hangs_after)


def _set_environment(root: Path) -> None:
    environment.enter_lab_environment()
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # as each kernel is, and `!` forks
    scripts = sysconfig.get_path("scripts")
    for name, folder in (("PATH", scripts), ("PYTHONPATH", str(root))):
        before = [part for part in os.environ.get(name, "").split(os.pathsep) if part and part != folder]
        os.environ[name] = os.pathsep.join([folder, *before])
    bash = shutil.which("bash")
    if bash is None:
        raise CourseError("bash was not found; it is needed to notice a failure inside a pipe")
    os.environ["SHELL"] = bash  # IPython runs `!` lines with it
    os.environ["SHELLOPTS"] = "pipefail"  # bash reads this at start
    gpus = _count_gpus()
    if "RANK_BY_RANK_DEVICE" not in os.environ and 0 < gpus < RANKS:
        print(f"labs have up to {RANKS} ranks, and commands here see {gpus} GPUs: the labs run on the CPU")
        os.environ["RANK_BY_RANK_DEVICE"] = "cpu"
    if os.environ.get("RANK_BY_RANK_DEVICE") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per rank, as torchrun would set, unasked
    if "RANK_BY_RANK_RESULTS" not in os.environ:
        folder = tempfile.mkdtemp(prefix="rank-by-rank-")
        os.environ["RANK_BY_RANK_RESULTS"] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        temporary = Path(folder) / "tmp"  # torchrun leaves a folder behind in each run
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)


def _count_gpus() -> int:
    """How many GPUs a command would see. Where no driver is, torch is not imported to ask."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count()


def _telling_interrupts(system: Callable[[str], int]) -> Callable[[str], int]:
    """IPython keeps a Ctrl-C for itself, and the cell stays green if the command then ends with 0."""

    def run(command: str) -> int:
        if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
            return system(command)
        interrupted = False

        def note(number: int, frame: Any) -> None:
            nonlocal interrupted
            interrupted = True
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, note)
        try:
            code = system(command)
        finally:
            signal.signal(signal.SIGINT, before)
        if interrupted:
            raise CourseError("the command above was interrupted")
        return code

    run.tells_interrupts = True  # type: ignore[attr-defined]
    return run


def _show_in_one_line(
    shell: Any, kind: type, error: BaseException, traceback: Any, tb_offset: Any = None
) -> list[str]:
    text = str(error)
    if isinstance(error, CalledProcessError):
        words = last_words.recall(str(error.cmd)) or "the first error in its output says why"
        text = f"the command above failed with exit code {error.returncode}: {words}"
        if error.returncode == COMMAND_NOT_FOUND:
            text = "the command was not found; is the course installed in the environment of this kernel?"
    lines = [f"{kind.__name__}: {text}"]
    shell._showtraceback(kind, text, lines)
    return lines


def _writefile(line: str, cell: str) -> None:
    print(write_cell(Path(line.strip()), cell))
