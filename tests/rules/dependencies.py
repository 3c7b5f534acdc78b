"""Rules for versions: ranges and pins live in pyproject.toml, and nowhere else."""

import re
from pathlib import Path

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

REGISTRIES = re.compile(
    r"[\w.-]*(?:pypi|pythonhosted|download\.pytorch|conda\.anaconda|repo\.anaconda|prefix\.dev|conda-forge\.org)"
    r"[\w.-]*",
    re.IGNORECASE,
)
PLACES = (
    "pyproject.toml",
    "environment.yml",
    "Makefile",
    "*.md",
    ".ci/*",
    ".github/*/*",
    ".devcontainer/*",
    "*.toml",
    "*.txt",
    "*.cfg",
)
VERSION_OF_PACKAGE = re.compile(r"[\w-]+(?:\[[\w,]+\])?\s*(?:==|~=|[<>]=)\s*\d[\d.]*")


def range_problems(project: dict) -> list[str]:
    """Each dependency has a range with both ends and a pin within; there is no other pin."""
    extras = project["project"]["optional-dependencies"]
    wanted = project["project"]["dependencies"] + extras["test"] + extras["site"]
    ranged = {one.name: one for one in map(Requirement, wanted)}
    pins = {one.name: one for one in map(Requirement, extras["pinned"] + extras["site-pinned"])}
    found = [f"{name} is not pinned" for name in ranged.keys() - pins.keys()]
    found += [f"{name} is pinned but has no range" for name in pins.keys() - ranged.keys()]
    for name, one in ranged.items():
        if {spec.operator for spec in one.specifier} != {">=", "<"}:
            found.append(f"{name} needs a lowest and a highest version")
    for name, one in pins.items():
        (spec,) = one.specifier
        if spec.operator != "==":
            found.append(f"{name} is pinned loosely: {one}")
        elif name in ranged and not ranged[name].specifier.contains(spec.version):
            found.append(f"{one} is outside of {ranged[name]}")
    for one in map(Requirement, extras["oldest-kernel"] + extras["oldest-torch"]):
        lowest = min(spec.version for spec in ranged[one.name].specifier if spec.operator == ">=")
        (spec,) = one.specifier
        if not ranged[one.name].specifier.contains(spec.version) or not spec.version.startswith(lowest):
            found.append(f"{one} is not the oldest of {ranged[one.name]}")
    return found


def environment_problems(text: str, project: dict) -> list[str]:
    """environment.yml brings Python and pip; all else comes from pyproject.toml."""
    environment = yaml.safe_load(text)
    conda = [_conda_requirement(one) for one in environment["dependencies"] if isinstance(one, str)]
    pip = [line for one in environment["dependencies"] if isinstance(one, dict) for line in one["pip"]]
    found = []
    if pip != ["-e .[test,pinned]"]:
        found.append(f"pip installs {pip}, not this project with its pins")
    for one in conda:
        if one.name not in ("python", "pip"):
            found.append(f"{one.name} belongs into pyproject.toml")
    pythons = [one for one in conda if one.name == "python"]
    if len(pythons) != 1:
        found.append("python is not named once")
    allowed = SpecifierSet(project["project"]["requires-python"])
    for python in pythons:
        versions = [spec.version for spec in python.specifier if spec.operator != "<"]
        if not all(allowed.contains(version) for version in versions):
            found.append(f"{python} does not satisfy pyproject.toml")
    return found


def _conda_requirement(text: str) -> Requirement:
    """conda writes ``python=3.12`` for what pip writes as ``python==3.12``."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        return Requirement(text.replace("=", "==", 1))


def registry_problems(root: Path) -> list[str]:
    """Where packages come from is the reader's choice: no file names a registry."""
    found = []
    for path in sorted({path for place in PLACES for path in root.glob(place)}):
        for name in REGISTRIES.findall(path.read_text(encoding="utf-8")):
            found.append(f"{path.name} names {name}")
    return found


def version_problems(name: str, text: str) -> list[str]:
    return [f"{name} holds a version of its own: {match}" for match in VERSION_OF_PACKAGE.findall(text)]
