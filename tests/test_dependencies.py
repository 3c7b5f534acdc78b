"""Versions agree wherever they are told, and no file names a registry."""

import copy
from pathlib import Path

import pytest

from tests.helpers import ROOT, command, pyproject
from tests.rules import tell
from tests.rules.dependencies import environment_problems, range_problems, registry_problems, version_problems

ENVIRONMENT = """
name: rank-by-rank
channels: [conda-forge]
dependencies: [python=3.12, pip, {pip: ["-e .[test,pinned]"]}]
"""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_ranges_and_pins_agree():
    tell(range_problems(pyproject()))


def test_environment_yml_agrees_with_pyproject():
    tell(environment_problems(read("environment.yml"), pyproject()))


def test_no_file_names_a_registry():
    tell(registry_problems(ROOT))


@pytest.mark.parametrize("name", ["Makefile", ".ci/run"])
def test_no_other_file_holds_a_version(name: str):
    tell(version_problems(name, read(name)))


def test_the_makefile_reads_the_pins():
    pins = pyproject()["project"]["optional-dependencies"]
    ask = ["python3", "shared/tools/pins.py", "pinned", "--only", "torch", "torchvision"]
    assert command(*ask).stdout.splitlines() == pins["pinned"][:2]
    assert command(*ask, "--over", "oldest-torch").stdout.splitlines() == pins["oldest-torch"]
    assert command(*ask[:3], "--over", "oldest-torch").stdout.splitlines()[2:] == pins["pinned"][2:]


@pytest.mark.parametrize(
    ("extra", "old", "new", "expected"),
    [
        ("pinned", "torch==", "torch==3.0.0", "torch==3.0.0 is outside of"),
        ("pinned", "numpy==", "numpy>=2.1", "numpy is pinned loosely"),
        ("pinned", "tqdm==", "other==1", "tqdm is not pinned"),
        ("site-pinned", "sphinx==", "sphinx==8.0", "sphinx==8.0 is outside of"),
        ("test", "ruff>=", "ruff>=0.17", "ruff needs a lowest and a highest version"),
        ("test", "ruff>=", "ruff<0.18", "ruff needs a lowest and a highest version"),
        ("oldest-kernel", "ipython==", "ipython==9.18.1", "ipython==9.18.1 is not the oldest"),
        (None, "torch>=", "torch>=2.12,<2.16", "torch==2.11.0 is not the oldest of"),
        ("oldest-torch", "torch==", "torch==2.12.1", "torch==2.12.1 is not the oldest of"),
    ],
)
def test_a_disagreement_is_found(extra: str | None, old: str, new: str, expected: str):
    project = copy.deepcopy(pyproject())
    table = project["project"]
    lines = table["optional-dependencies"][extra] if extra else table["dependencies"]
    (index,) = [index for index, line in enumerate(lines) if line.startswith(old)]
    lines[index] = new
    assert any(expected in problem for problem in range_problems(project))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("python=3.12", "python=3.10", "python==3.10 does not satisfy"),
        ("python=3.12", '"python>=3.10,<3.13"', "does not satisfy"),
        ("pip,", "pip, numpy=2,", "numpy belongs into pyproject.toml"),
        ("-e .[test,pinned]", "torch==2.15.0", "not this project with its pins"),
        ("python=3.12, ", "", "python is not named once"),
    ],
)
def test_a_faulty_environment_is_found(old: str, new: str, expected: str):
    assert environment_problems(ENVIRONMENT, pyproject()) == []
    (problem,) = environment_problems(ENVIRONMENT.replace(old, new), pyproject())
    assert expected in problem


@pytest.mark.parametrize(
    "place", ["Makefile", "README.md", "environment.yml", ".ci/run", "uv.toml", ".github/workflows/x"]
)
def test_a_registry_is_found(place: str, tmp_path: Path):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    host = "download." + "pytorch.org"
    (tmp_path / place).write_text(f"pip install --index-url https://{host}/whl/cpu torch", encoding="utf-8")
    assert registry_problems(tmp_path) == [f"{Path(place).name} names {host}"]


@pytest.mark.parametrize(
    "line", ["pip install torch==2.15.0", "pip install 'numpy>=2'", "pip install x ~= 1.0"]
)
def test_a_version_in_the_makefile_is_found(line: str):
    assert len(version_problems("Makefile", line)) == 1
