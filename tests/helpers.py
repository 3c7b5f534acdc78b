"""What several test files need: run a script under torchrun, copy the checkout, build a notebook."""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from shared.runtime.environment import lab_environment

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(__file__).parent / "scripts"
LABS = ROOT / "labs"
ROOMS = sorted(LABS.glob("lesson_[0-9][0-9]"))
LESSON_PATHS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
EXERCISES = [
    re.search(r'check_exercise\(\s*"(\w+)"', (room / "check.py").read_text(encoding="utf-8"))[1]
    for room in ROOMS
]
Done = subprocess.CompletedProcess
HANG_S = 1200  # bounds a hang; nothing is measured with it


@cache
def scratch() -> tempfile.TemporaryDirectory:
    """Where commands leave their temporary files: torchrun leaves a folder behind in each run."""
    return tempfile.TemporaryDirectory(prefix="rank-by-rank-tests-", ignore_cleanup_errors=True)


def environment(root: Path | None = ROOT, **more: str) -> dict[str, str]:
    """A reader's environment: ``python`` is this one, our packages are ``root``'s, or None: as installed."""
    of_make = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # the tests themselves are called by make
    unwanted = ("RANK_BY_RANK_RESULTS", "PYTHONPATH", "SHELLOPTS", *of_make)
    kept = {
        name: value
        for name, value in lab_environment(os.environ).items()
        if name not in unwanted and not name.startswith("PYTEST_")
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    fixed = {"PATH": path, "OMP_NUM_THREADS": "1", "RANK_BY_RANK_DEVICE": "cpu", "TMPDIR": scratch().name}
    if root is not None:
        fixed["PYTHONPATH"] = os.pathsep.join([str(root), str(root / "rank_tools")])
    return {**kept, **fixed, **more}


def command(*parts: str | Path, root: Path | None = ROOT, cwd: Path = ROOT, **env: str) -> Done:
    """Run a command to its end; ``stdout`` holds both streams as text."""
    return subprocess.run(
        [str(part) for part in parts],
        cwd=cwd,
        env=environment(root, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=HANG_S,
    )


def python(*parts: str | Path, **options) -> Done:
    return command(sys.executable, *parts, **options)


def torchrun_command(
    script: Path, ranks: int, *arguments: str | Path, options: Sequence[str] = ()
) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, *options, str(script), *map(str, arguments)]


def torchrun(script: Path, *arguments: str | Path, ranks: int = 2, **options) -> Done:
    return command(*torchrun_command(script, ranks, *arguments), **options)


def notebook_of(*code: str, markdown: Sequence[str] = ()) -> nbformat.NotebookNode:
    cells = [*map(new_markdown_cell, markdown), *map(new_code_cell, code)]
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def pyproject(folder: str = "") -> dict:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
