"""The linters of .pre-commit-config.yaml are content."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from shared.tools.lessons import cells_of, read_lessons
from tests.helpers import LESSON_PATHS, ROOT, Done, command
from tests.rules.links import markdown_of

(REPOSITORY,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
LINTERS = {hook["id"]: hook["entry"] for hook in REPOSITORY["hooks"]}


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


def test_no_lesson_leans_on_the_tools_of_authors():
    for lesson in read_lessons():
        for cell in cells_of(lesson.notebook, "code"):
            assert "shared.tools" not in cell.source, f"{lesson.path.name}: {cell.id}"
