"""What is installed: four commands that need Python alone; three of them also run as a copied folder."""

import tomllib
import zipfile
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from helpers import PACKAGE, ROOT, TOOLS, Done, command, python

COMMANDS = ("rank-check", "rank-doctor", "rank-plan", "rank-replay")
COPIED = [tool for tool in TOOLS if tool != "replay"]  # it needs the doctor's folder, too
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
# Imports every module of the package argv[2], which lies in the folder argv[1].
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
package = importlib.import_module(sys.argv[2])
for module in pkgutil.walk_packages(package.__path__, f"{sys.argv[2]}."):
    importlib.import_module(module.name)
"""


def imported_alone(tool: str, folder: Path) -> Done:
    """Import all modules of a tool that lies in ``folder``, where nothing is installed."""
    return python("-I", "-S", "-c", IMPORT_ALL, folder, tool, cwd=folder)


def test_copied_tools_need_nothing_but_python(tmp_path: Path):
    for tool in COPIED:
        copytree(PACKAGE / tool, tmp_path / tool)
        done = imported_alone(tool, tmp_path)
        assert done.returncode == 0, done.stdout
        told = python("-m", tool, "--version", cwd=tmp_path).stdout
        assert told.endswith(" (a copied folder)\n"), "it tells the version of the installed package"
    for line in ("import torch", f"from rank_tools.{tool} import *", "from ..runtime import errors"):
        (tmp_path / tool / "more.py").write_text(f"{line}\n", encoding="utf-8")
        assert imported_alone(tool, tmp_path).returncode == 1


@pytest.mark.slow
def test_the_wheel_holds_the_tools_that_run_in_an_empty_environment(tmp_path: Path):
    source = tmp_path / "source"
    left_out = ignore_patterns("__pycache__", "build", "*.egg-info", "tests")
    copytree(ROOT, source, ignore=left_out)
    pip = ("-m", "pip", "-q", "--disable-pip-version-check")
    alone = ("--no-deps", "--no-index")
    done = python(*pip, "wheel", "--no-build-isolation", *alone, "-w", tmp_path, source)
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    modules = [Path(name) for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    assert {module.parent.name for module in modules} == {"rank_tools", *TOOLS}

    empty = tmp_path / "empty"
    assert python("-m", "venv", "--without-pip", empty).returncode == 0
    there = empty / "bin" / "python"
    # Without the folder of an editable install in sight: pip would find the package there already.
    done = python(*pip, "--python", there, "install", *alone, wheel, PYTHONPATH="")
    assert done.returncode == 0, done.stdout
    script = tmp_path / "train.py"
    script.write_text("torch.cuda.set_device(rank)\n", encoding="utf-8")
    for words, expected in (
        (("rank-check", script), "1 file, 13 rules: nothing found"),
        (("rank-plan", "--model", "8b", "--gpus", "8", "--global-batch", "128"), "8,030,261,248 parameters"),
        (("rank-replay", "--", there, "-c", "pass"), "no page: no rank ran a line"),
        (("rank-doctor", "--", there, "-c", "print('ended')"), "ended"),
        *(((name, "--version"), f"{name} {VERSION}\n") for name in COMMANDS),
    ):
        done = command(empty / "bin" / words[0], *words[1:], cwd=tmp_path, PYTHONPATH="")
        assert done.returncode == (2 if words[0] == "rank-replay" and "-c" in words else 0), done.stdout
        assert expected in done.stdout
