"""The fault table: for each lab at least one planted fault that turns it red. One file per lesson.

To add a fault, append to ``FAULTS`` in ``tests/faults/lesson_NN.py``::

    Fault("05_ring", "target += incoming", "target.copy_(incoming)", "sum over 2 ranks: differs by"),

How it is tried (``tests/test_planted_faults.py``): all labs of the lesson are copied into an empty folder; in
``lab_05_ring.py`` there ``old``, which must occur exactly once, becomes ``new``; then the lab ``run`` is run
(default: the same lab; name the proving lab if ``lab`` is a plain one that it imports). It must end with an
exit code other than 0 and print ``told``, and the fault must not be a slip like a NameError. Choose a fault
that a reader might make, and as ``told`` the words of the check that finds it: "AssertionError" alone may be
another assertion. The lab must not print these words without the fault; the lesson's outputs tell.

"26_gallery" is no lab but ``shared/lesson_26/gallery.py``; "lesson_10/sync_batch_norm" is a module of
``shared`` whose lab has its name. Around such a module all labs and all of ``shared`` are copied.

``launch="warm"`` (default): ``ranks`` forks of a process that has torch already, in the environment that
torchrun sets; ``ranks=0`` is a script that is no rank, as ``python LAB`` starts it. ``"torchrun"`` and
``"python"`` start the real thing, for labs that start torchrun or processes by themselves, or that measure
memory or the launch itself. In ``arguments``, ``options`` (of torchrun, such as ``--max-restarts=1``) and
``environment`` (pairs) the word FOLDER stands for a folder of this run.

A lab that needs what another run leaves behind names that in ``before``: a lab and its arguments, launched
warm in the same folder, however that ends.

A lab that runs only where certain programs are says so by ``missing``: what it returns is why the fault is
skipped here, if anything.

Try one: ``.venv/bin/python -m pytest tests/test_planted_faults.py -k 05_ring``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
CLAIMS_NOTHING = {"09_bench_ddp"}  # it measures, so no fault turns it red


def place_of(name: str, root: Path) -> Path:
    """``labs/lab_05_ring.py`` for "05_ring", or for "26_gallery" the module of the lesson's harness.

    A job script has its own ending: "27_train.sbatch".
    """
    if "." in name:
        return root / "labs" / f"lab_{name}"
    if "/" in name:
        return root / "shared" / f"{name}.py"
    lab = root / "labs" / f"lab_{name}.py"
    module = root / "shared" / f"lesson_{name[:2]}" / f"{name[3:]}.py"
    return module if module.is_file() and not lab.is_file() else lab


@dataclass(frozen=True)
class Fault:
    """A change of a lab, and what the lab ``run`` then says."""

    lab: str
    old: str
    new: str
    told: str
    run: str = ""
    ranks: int = 2
    launch: Literal["warm", "torchrun", "python"] = "warm"
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    before: tuple[str, ...] = ()
    missing: Callable[[], str | None] | None = None

    @property
    def lab_to_run(self) -> str:
        return self.run or self.lab

    @property
    def lesson(self) -> str:
        """Two digits."""
        return self.lab[:2]


def lessons() -> list[str]:
    """Two digits each: the lessons that have a file in the table."""
    return sorted(path.stem.removeprefix("lesson_") for path in HERE.glob("lesson_*.py"))


def faults_of(lesson: str) -> list[Fault]:
    return import_module(f"tests.faults.lesson_{lesson}").FAULTS
