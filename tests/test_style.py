"""Code is clean for ruff and mypy, texts are clean for codespell, and all of them notice a fault."""

from pathlib import Path

import nbformat
import pytest

from shared.tools.format import CODE
from shared.tools.outputs import clean
from tests.helpers import LESSON_PATHS, ROOT, Done, notebook_of, python
from tests.rules.links import markdown_of

SLIP = "from shared.comm.record import least_bytes\n\nleast_bytes('all_reduce', 'eight', 2)\n"
LONG = "def f(x):\n" + "    print(x)\n" * 51
TANGLED = (
    "def f(x):\n" + "".join(f"    if x == {n}:\n        return {n}\n" for n in range(12)) + "    return -1\n"
)


def ruff(*arguments: str | Path) -> Done:
    return python("-m", "ruff", *arguments, "--no-cache", "--config", ROOT / "pyproject.toml")


def mypy(*paths: str | Path) -> Done:
    return python("-m", "mypy", "--config-file", ROOT / "pyproject.toml", *paths)


def codespell(*paths: str | Path) -> Done:
    return python("-m", "codespell_lib", *paths)


def test_code_and_notebooks_are_clean():
    done = ruff("check", *CODE, "notebooks")
    assert done.returncode == 0, done.stdout


def test_code_is_formatted():
    done = ruff("format", "--check", *CODE, "notebooks")
    assert done.returncode == 0, f"run `make format`\n{done.stdout}"


def test_texts_are_spelled_right(tmp_path: Path):
    texts = []
    for path in LESSON_PATHS:
        texts.append(tmp_path / f"{path.stem}.md")
        texts[-1].write_text(markdown_of(path), encoding="utf-8")
    done = codespell(*CODE, *ROOT.glob("*.md"), "CITATION.cff", *texts)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "text", "expected"),
    [
        (("check",), "import os\n", "F401"),
        (("format", "--check"), "x = [1,2]\n", "1 file would be reformatted"),
        (("check",), TANGLED, "C901"),
        (("check",), LONG, "PLR0915"),
    ],
)
def test_untidy_code_is_found(arguments: tuple[str, ...], text: str, expected: str, tmp_path: Path):
    path = tmp_path / "untidy.py"
    path.write_text(text, encoding="utf-8")
    done = ruff(*arguments, path)
    assert done.returncode == 1
    assert expected in done.stdout


@pytest.mark.parametrize(
    ("cell", "code"),
    [("x = [1,2]", 1), ("x = [1, 2]", 0), ("%%writefile ../labs/lab_90_small.py\nx = [1,2]", 0)],
)
def test_an_untidy_cell_is_found(cell: str, code: int, tmp_path: Path):
    path = tmp_path / "90_small.ipynb"
    notebook = notebook_of(cell)
    clean(notebook)  # ruff passes over a notebook that does not say that it is Python
    nbformat.write(notebook, path)
    assert ruff("format", "--check", path).returncode == code


def test_types_agree():
    done = mypy()
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_wrong_type_is_found(tmp_path: Path):
    path = tmp_path / "slip.py"
    path.write_text(SLIP, encoding="utf-8")
    done = mypy(path)
    assert done.returncode == 1
    assert 'incompatible type "str"; expected "int"' in done.stdout


@pytest.mark.slow
def test_a_slip_in_a_text_is_found(tmp_path: Path):
    path = tmp_path / "text.md"
    path.write_text("We " + "rec" + "ieve a tensor.\n", encoding="utf-8")
    done = codespell(path)
    assert done.returncode != 0
    assert "==> receive" in done.stdout
