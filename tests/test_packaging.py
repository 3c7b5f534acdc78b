"""What is installed: ranges and lock agree, and no file names a registry."""

import importlib.util
import platform
import re
import zipfile
from pathlib import Path
from shutil import copy as copy_file
from shutil import copytree, ignore_patterns

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.helpers import ROOT, pyproject, python
from tests.rules import tell

EXTRAS = ("course", "test", "site")
REGISTRIES = re.compile(
    r"[\w.-]*(?:pypi|pythonhosted|download\.pytorch|conda\.anaconda|repo\.anaconda|prefix\.dev|conda-forge\.org)"
    r"[\w.-]*",
    re.IGNORECASE,
)
PLACES = ("*.toml", "*.yml", "*.md", "*.txt", "*.cfg", "Makefile", ".ci/*", ".github/*/*", ".devcontainer/*")
PLACES += ("rank_tools/*.toml", "rank_tools/*.md")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(name: str, python: str) -> list[Requirement]:
    """The lines of a file of versions that hold for a Python of this version on this kind of machine."""
    lines = [Requirement(line) for line in read(name).splitlines() if not line.startswith("#")]
    here = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    return [line for line in lines if line.marker is None or line.marker.evaluate(here)]


def locked(name: str, python: str = "3.11.7") -> dict[str, str]:
    """{package: version}, or an empty text where only the package is named."""
    return {
        canonicalize_name(line.name): str(line.specifier).removeprefix("==") for line in pins(name, python)
    }


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


PYTHONS = ("3.11.2", "3.12.0", "3.13.0", "3.14.0")  # the oldest that is promised, and the first of each other


@pytest.mark.parametrize("python", PYTHONS)
def test_each_python_gets_one_version_of_each_package(python: str):
    names = [canonicalize_name(line.name) for line in pins(".ci/constraints.txt", python)]
    assert sorted(names) == sorted(set(names)) and len(names) > 100
    tell(range_problems(pyproject(), locked(".ci/constraints.txt", python)))


@pytest.fixture(scope="module")
def new_pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pip that reads what a package says of itself without the rest of the package."""
    folder = tmp_path_factory.mktemp("pip")
    done = python("-m", "pip", "install", "-q", "--no-input", "--retries", "1", "--target", folder, "pip>=26")
    if done.returncode != 0:
        pytest.skip("the lock is not resolved: no package index answers here")
    return folder


def refused(lines: list[str], python_version: str, pip: Path, folder: Path) -> str:
    """What pip has against these lines on another Python; it reads metadata alone and installs nothing."""
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    systems = [f"manylinux_2_{minor}" for minor in range(5, 37)] + ["manylinux2014", "manylinux2010", "linux"]
    options = [option for system in systems for option in ("--platform", f"{system}_{platform.machine()}")]
    done = python(
        *("-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--only-binary=:all:", "--no-input"),
        *("--use-feature=fast-deps", "--python-version", python_version, "--target", folder / "nowhere"),
        *options,
        *("-r", folder / "lines.txt"),
        root=None,
        PYTHONPATH=str(pip),
    )
    return "" if done.returncode == 0 else done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_the_lock_holds_on_each_python(version: str, new_pip: Path, tmp_path: Path):
    lines = [f"{line.name}{line.specifier}" for line in pins(".ci/constraints.txt", version)]
    assert refused(lines, version, new_pip, tmp_path) == ""


def test_the_same_pythons_are_promised_everywhere():
    spec = importlib.util.spec_from_file_location("set_up", ROOT / ".ci" / "set_up.py")
    assert spec and spec.loader
    set_up = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(set_up)
    oldest, newest = (".".join(map(str, version)) for version in (set_up.OLDEST, set_up.NEWEST))
    left_out = ".".join(map(str, set_up.LEFT_OUT))
    promised = [f"3.{minor}" for minor in range(set_up.OLDEST[1], set_up.NEWEST[1] + 1)]
    project = pyproject()["project"]
    assert project["requires-python"] == f">={oldest},!={left_out},<3.{set_up.NEWEST[1] + 1}"
    assert [name.split(" :: ")[-1] for name in project["classifiers"] if ":: 3." in name] == promised
    assert [version.rpartition(".")[0] for version in PYTHONS] == promised
    for name in ("README.md", "notebooks/using.md", "Makefile", "environment.yml", ".ci/set_up.py"):
        assert f"Python {oldest} to {newest}" in read(name), name
    assert left_out in read("notebooks/using.md")
    base = re.match(r"FROM python:(\d+\.\d+)-", read(".devcontainer/Dockerfile"))
    assert base and base[1] in promised
    workflow = yaml.safe_load(read(".github/workflows/test.yml"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == promised


def test_the_sizes_that_are_told_are_those_of_the_set_up():
    text = read(".ci/set_up.py")
    assert "FOR_GPUS, FOR_CPUS = (3.3, 6.7), (0.5, 2)" in text
    for name in ("README.md", "notebooks/using.md"):
        for size in ("3.3 GB", "10 GB", "0.5 GB", "2.5 GB"):
            assert size in read(name), f"{name}: {size}"


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
    page = read("notebooks/where_run.md")
    assert f"torch {newest}" in page and f"Python {python_line.removeprefix('python=')}" in page
    for target in re.findall(r"`make ([\w-]+)", page):
        assert f"\n{target}:" in read("Makefile"), target


def test_conda_installs_what_make_installs():
    python_line, pip_line, pip = yaml.safe_load(read("environment.yml"))["dependencies"]
    assert pip_line == "pip"
    assert python_line.removeprefix("python=") in SpecifierSet(pyproject()["project"]["requires-python"])
    assert pip["pip"] == ["-c .ci/constraints.txt", "-e .[course,test]", "-e ./rank_tools"]
    assert '-c $(VERSIONS) -e ".[course,test]" -e ./rank_tools' in read("Makefile")


def registry_problems(root: Path) -> list[str]:
    """Where packages come from is the reader's choice: no file names a registry."""
    problems = []
    for path in sorted({path for place in PLACES for path in root.glob(place)}):
        for name in REGISTRIES.findall(path.read_text(encoding="utf-8")):
            problems.append(f"{path.name} names {name}")
    return problems


def test_no_file_names_a_registry():
    tell(registry_problems(ROOT))


@pytest.mark.slow
def test_a_wheel_of_the_course_would_be_empty(tmp_path: Path):
    source = tmp_path / "source"
    copytree(ROOT / "shared", source / "shared", ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy_file(ROOT / name, source)
    quiet = ("-q", "--no-deps", "--no-index", "--no-build-isolation")
    done = python("-m", "pip", "wheel", *quiet, "-w", tmp_path, source)
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if ".dist-info/" not in name] == []
