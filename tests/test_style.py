"""The linters of .pre-commit-config.yaml are content, and each of them notices a fault."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree, ignore_patterns

import nbformat
import pytest
import yaml

from shared.tools.lessons import cells_of, read_lessons
from shared.tools.outputs import clean
from tests.helpers import LESSON_PATHS, ROOT, Done, command, notebook_of
from tests.rules.links import markdown_of

(REPOSITORY,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
LINTERS = {hook["id"]: hook["entry"] for hook in REPOSITORY["hooks"]}
SLIP = "from shared.comm.record import least_bytes\n\nleast_bytes('all_reduce', 'eight', 2)\n"
LONG = "def f(x):\n" + "    print(x)\n" * 51
TANGLED = (
    "def f(x):\n" + "".join(f"    if x == {n}:\n        return {n}\n" for n in range(12)) + "    return -1\n"
)


def linter(name: str, *paths: str | Path, cwd: Path = ROOT) -> Done:
    """Run a linter as pre-commit does, or on other ``paths``."""
    program, *options = LINTERS[name].split()
    here = Path(sys.executable) if program == "python" else Path(sys.executable).parent / program
    module = options[1] if program == "python" else "importlinter"
    if find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed: `make setup`")
    return command(here, *options, *paths, root=cwd, cwd=cwd)


@pytest.mark.parametrize("name", LINTERS)
def test_a_linter_is_content(name: str):
    done = linter(name)
    assert done.returncode == 0, done.stdout


def test_lessons_are_spelled_right(tmp_path: Path):
    for path in LESSON_PATHS:  # codespell passes over notebooks: in their outputs it would find slips
        (tmp_path / f"{path.stem}.md").write_text(markdown_of(path), encoding="utf-8")
    done = linter("codespell", tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ruff-check", f"import os\n{TANGLED}{LONG}", ("F401", "C901", "PLR0915")),
        ("ruff-format", "x = [1,2]\n", ("1 file would be reformatted",)),
        ("codespell", "# We " + "rec" + "ieve a tensor.\n", ("==> receive",)),
        pytest.param("mypy", SLIP, ('incompatible type "str"; expected "int"',), marks=pytest.mark.slow),
    ],
)
def test_a_fault_is_found(name: str, text: str, expected: tuple[str, ...], tmp_path: Path):
    path = tmp_path / "faulty.py"
    path.write_text(text, encoding="utf-8")
    settings = ("--no-cache", "--config", ROOT / "pyproject.toml") if name.startswith("ruff") else ()
    done = linter(name, *settings, path)
    assert done.returncode != 0
    assert [told for told in expected if told not in done.stdout] == []


@pytest.mark.parametrize(
    ("cell", "code"),
    [("x = [1,2]", 1), ("x = [1, 2]", 0), ("%%writefile ../labs/lab_90_small.py\nx = [1,2]", 0)],
)
def test_an_untidy_cell_is_found(cell: str, code: int, tmp_path: Path):
    path = tmp_path / "90_small.ipynb"
    notebook = notebook_of(cell)
    clean(notebook)  # ruff passes over a notebook that does not say that it is Python
    nbformat.write(notebook, path)
    assert linter("ruff-format", "--no-cache", path).returncode == code


WRONG_IMPORTS = {  # {module of shared: what is added}
    "runtime/ports.py": "from shared.comm import p2p",
    "comm/p2p.py": "def f():\n    from ..training import data",
    "training/parity.py": "import shared.tools.lessons",
    "lesson_18/shards.py": "from shared.lesson_20 import flops",
    "runtime/errors.py": "from shared.runtime import run",
    "corridor.py": "x = 1",
}


@pytest.mark.slow
def test_wrong_imports_are_found(tmp_path: Path):
    copytree(ROOT / "shared", tmp_path / "shared", ignore=ignore_patterns("__pycache__"))
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for name, line in WRONG_IMPORTS.items():
        with (tmp_path / "shared" / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    done = linter("lint-imports", cwd=tmp_path)
    assert done.returncode == 1
    told = re.sub(r"\s+", " ", done.stdout)
    for package in ("runtime", "comm", "training", "lesson_18"):
        assert f"shared.{package} is not allowed to import" in told
    assert "No circles BROKEN" in told
    assert "shared.corridor" in told


def test_no_lesson_leans_on_the_tools_of_authors():
    for lesson in read_lessons():
        for cell in cells_of(lesson.notebook, "code"):
            assert "shared.tools" not in cell.source, f"{lesson.path.name}: {cell.id}"
