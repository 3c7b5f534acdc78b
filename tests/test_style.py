"""Code is clean for ruff, texts are clean for codespell, and both notice a fault."""

from pathlib import Path

import pytest

from tests.helpers import LESSON_PATHS, ROOT, Done, python
from tests.rules.links import markdown_of

CODE = ("shared", "labs", "tests", "conftest.py")


def ruff(*arguments: str | Path) -> Done:
    return python("-m", "ruff", *arguments, "--no-cache", "--config", ROOT / "pyproject.toml")


def codespell(*paths: str | Path) -> Done:
    return python("-m", "codespell_lib", *paths)


def test_code_and_notebooks_are_clean():
    done = ruff("check", *CODE, "notebooks")
    assert done.returncode == 0, done.stdout


def test_code_is_formatted():
    done = ruff("format", "--check", *CODE)
    assert done.returncode == 0, f"run `make format`\n{done.stdout}"


def test_texts_are_spelled_right(tmp_path: Path):
    texts = []
    for path in LESSON_PATHS:
        texts.append(tmp_path / f"{path.stem}.md")
        texts[-1].write_text(markdown_of(path), encoding="utf-8")
    done = codespell(*CODE, "README.md", *texts)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "text", "expected"),
    [
        (("check",), "import os\n", "F401"),
        (("format", "--check"), "x = [1,2]\n", "1 file would be reformatted"),
    ],
)
def test_untidy_code_is_found(arguments: tuple[str, ...], text: str, expected: str, tmp_path: Path):
    path = tmp_path / "untidy.py"
    path.write_text(text, encoding="utf-8")
    done = ruff(*arguments, path)
    assert done.returncode == 1
    assert expected in done.stdout


def test_a_slip_in_a_text_is_found(tmp_path: Path):
    path = tmp_path / "text.md"
    path.write_text("We " + "rec" + "ieve a tensor.\n", encoding="utf-8")
    done = codespell(path)
    assert done.returncode != 0
    assert "==> receive" in done.stdout
