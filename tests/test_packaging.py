"""What is installed: ranges and lock agree, no file names a registry, the wheel holds three tools alone."""

import copy
import re
import sys
import zipfile
from pathlib import Path
from shutil import copy as copy_file
from shutil import copytree, ignore_patterns

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.helpers import ROOT, Done, command, pyproject, python
from tests.rules import tell

EXTRAS = ("course", "test", "site")
REGISTRIES = re.compile(
    r"[\w.-]*(?:pypi|pythonhosted|download\.pytorch|conda\.anaconda|repo\.anaconda|prefix\.dev|conda-forge\.org)"
    r"[\w.-]*",
    re.IGNORECASE,
)
PLACES = ("*.toml", "*.yml", "*.md", "*.txt", "*.cfg", "Makefile", ".ci/*", ".github/*/*", ".devcontainer/*")
TOOLS = ("checklist", "doctor", "planner")
COMMANDS = ("rank-check", "rank-doctor", "rank-plan")
# Imports every module of the package argv[2], which lies in the folder argv[1].
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
package = importlib.import_module(sys.argv[2])
for module in pkgutil.walk_packages(package.__path__, f"{sys.argv[2]}."):
    importlib.import_module(module.name)
"""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def locked(name: str) -> dict[str, str]:
    """{package: version} of a file in which each line names one version, or only a package."""
    lines = [line for line in read(name).splitlines() if not line.startswith("#")]
    pairs = [line.partition("==") for line in lines]
    return {canonicalize_name(package): version for package, _, version in pairs}


def range_problems(project: dict, lock: dict[str, str]) -> list[str]:
    """Each requirement has a range with both ends, and the lock has a version in it."""
    problems = []
    extras = project["project"]["optional-dependencies"]
    for requirement in [Requirement(line) for extra in EXTRAS for line in extras[extra]]:
        version = lock.get(canonicalize_name(requirement.name), "")
        if not version:
            problems.append(f"{requirement.name} is not locked")
        elif version not in requirement.specifier:
            problems.append(
                f"{requirement.name} is locked to {version}, which is outside of {requirement.specifier}"
            )
        if {spec.operator for spec in requirement.specifier} != {">=", "<"}:
            problems.append(f"{requirement.name} needs a lowest and a highest version")
    return problems


def test_ranges_and_lock_agree():
    tell(range_problems(pyproject(), locked(".ci/constraints.txt")))


@pytest.mark.parametrize(
    ("extra", "old", "new", "expected"),
    [
        ("course", "torch>=", "torch>=3,<4", "torch is locked to"),
        ("course", "tqdm>=", "other>=1,<2", "other is not locked"),
        ("site", "sphinx>=", "sphinx>=8", "sphinx needs a lowest and a highest version"),
    ],
)
def test_a_disagreement_is_found(extra: str, old: str, new: str, expected: str):
    project = copy.deepcopy(pyproject())
    lines = project["project"]["optional-dependencies"][extra]
    (index,) = [index for index, line in enumerate(lines) if line.startswith(old)]
    lines[index] = new
    assert expected in "\n".join(range_problems(project, locked(".ci/constraints.txt")))


def test_the_oldest_kernel_is_the_lowest_that_the_ranges_allow():
    wanted = [Requirement(line) for line in pyproject()["project"]["optional-dependencies"]["course"]]
    for name, version in locked(".ci/oldest-kernel.txt").items():
        (requirement,) = [requirement for requirement in wanted if requirement.name == name]
        (lowest,) = [spec.version for spec in requirement.specifier if spec.operator == ">="]
        assert version in requirement.specifier and version.startswith(lowest)


def test_the_oldest_torch_that_is_tried_is_named():
    version = locked(".ci/oldest-torch.txt")["torch"].removesuffix(".0")
    assert f"torch {version}" in read("notebooks/using.md")
    assert f"torch {version}" in read("notebooks/where_run.md")


def test_the_page_of_runs_names_the_versions_that_are_run():
    newest = ".".join(locked(".ci/constraints.txt")["torch"].split(".")[:2])
    (python_line, *_) = yaml.safe_load(read("environment.yml"))["dependencies"]
    oldest_python = pyproject()["project"]["requires-python"].removeprefix(">=")
    page = read("notebooks/where_run.md")
    assert f"torch {newest}" in page and f"Python {python_line.removeprefix('python=')}" in page
    assert f"Python {oldest_python}" in page
    for target in re.findall(r"`make ([\w-]+)", page):
        assert f"\n{target}:" in read("Makefile"), target


def test_conda_installs_what_make_installs():
    python_line, pip_line, pip = yaml.safe_load(read("environment.yml"))["dependencies"]
    assert pip_line == "pip"
    assert python_line.removeprefix("python=") in SpecifierSet(pyproject()["project"]["requires-python"])
    assert pip["pip"] == ["-c .ci/constraints.txt", "-e .[course,test]"]
    assert '-c $(VERSIONS) -e ".[course,test]"' in read("Makefile")


def registry_problems(root: Path) -> list[str]:
    """Where packages come from is the reader's choice: no file names a registry."""
    problems = []
    for path in sorted({path for place in PLACES for path in root.glob(place)}):
        for name in REGISTRIES.findall(path.read_text(encoding="utf-8")):
            problems.append(f"{path.name} names {name}")
    return problems


def test_no_file_names_a_registry():
    tell(registry_problems(ROOT))


def test_a_registry_is_found(tmp_path: Path):
    host = "download." + "pytorch.org"
    places = (".ci/run", ".github/workflows/x", "Makefile", "README.md", "uv.toml")
    for place in places:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"pip install --index-url https://{host}/whl/cpu torch", encoding="utf-8")
    assert registry_problems(tmp_path) == [f"{Path(place).name} names {host}" for place in places]


def imported_alone(tool: str, folder: Path) -> Done:
    """Import all modules of a tool that lies in ``folder``, where nothing is installed."""
    return command(sys.executable, "-I", "-S", "-c", IMPORT_ALL, folder, tool, cwd=folder)


def test_copied_tools_need_nothing_but_python(tmp_path: Path):
    for tool in TOOLS:
        copytree(ROOT / "shared" / tool, tmp_path / tool)
        done = imported_alone(tool, tmp_path)
        assert done.returncode == 0, done.stdout
        told = command(sys.executable, "-m", tool, "--version", root=None, cwd=tmp_path).stdout
        assert told.endswith(" (a copied folder)\n"), "it tells the version of the installed package"
    for line in ("import torch", f"from shared.{tool} import *", "from ..runtime import errors"):
        (tmp_path / tool / "more.py").write_text(f"{line}\n", encoding="utf-8")
        assert imported_alone(tool, tmp_path).returncode == 1


@pytest.mark.slow
def test_the_wheel_holds_three_tools_that_run_in_an_empty_environment(tmp_path: Path):
    source = tmp_path / "source"
    copytree(ROOT / "shared", source / "shared", ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy_file(ROOT / name, source)
    no_network = ("--no-deps", "--no-index", "-q")
    done = python("-m", "pip", "wheel", "--no-build-isolation", *no_network, "-w", tmp_path, source)
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    modules = [Path(name) for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    assert {module.parent.name for module in modules} == {"shared", *TOOLS}

    empty = tmp_path / "empty"
    assert python("-m", "venv", "--without-pip", empty).returncode == 0
    there = empty / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", there)
    done = command(*pip, "install", *no_network, wheel, root=None)
    assert done.returncode == 0, done.stdout
    assert command(*pip, "check", root=None).stdout == "No broken requirements found.\n"
    copy_file(ROOT / "labs" / "lab_10_train.py", tmp_path)
    version = pyproject()["project"]["version"]
    for words, expected in (
        (("rank-check", "lab_10_train.py"), "1 file, 10 rules: nothing found"),
        (("rank-plan", "--model", "8b", "--gpus", "8", "--global-batch", "128"), "8,030,261,248 parameters"),
        (("rank-doctor", "--", there, "-c", "print('ended')"), "ended"),
        *(((name, "--version"), f"{name} {version}\n") for name in COMMANDS),
    ):
        done = command(empty / "bin" / words[0], *words[1:], root=None, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        assert expected in done.stdout
