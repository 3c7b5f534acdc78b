"""The files that a code host, an editor or a citation tool reads agree with the rest of the repository."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.fresh import readme_commands
from tests.helpers import ROOT, command, pyproject, python

PHONY = re.compile(r"^\.PHONY: (.*)$", re.MULTILINE)
MAKE = re.compile(r"\bmake (\w+)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def targets() -> set[str]:
    (line,) = PHONY.findall(read("Makefile"))
    return set(line.split())


def strangers(text: str) -> set[str]:
    """Targets of make that ``text`` calls and the Makefile does not have."""
    return set(MAKE.findall(text)) - targets()


def test_the_version_is_told_once():
    version = pyproject()["project"]["version"]
    assert pyproject("rank_tools")["project"]["version"] == version
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == version
    newest = re.search(r"^## (\S+) – (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert newest and newest.groups() == (version, str(citation["date-released"]))
    assert citation["license"] == pyproject()["project"]["license"]
    assert citation["authors"] == pyproject()["project"]["authors"]


def test_the_workflow_runs_what_the_makefile_has():
    text = read(".github/workflows/test.yml")
    workflow = yaml.safe_load(text)
    assert strangers(text) == set()
    assert strangers("run: make tests") == {"tests"}
    assert {"run": "bash .ci/run"} in workflow["jobs"]["test"]["steps"]
    assert strangers(read(".ci/run")) == set()
    steps = workflow["jobs"]["site"]["steps"]
    (upload,) = [step["with"]["path"] for step in steps if "upload-pages-artifact" in step.get("uses", "")]
    assert upload == "docs/_build/html"
    assert set(workflow["jobs"]["publish"]["needs"]) == {"test", "site"}


def test_make_takes_no_other_torch():
    done = command("make", "-n", "setup", "TORCH=newer")
    assert done.returncode != 0
    assert "TORCH is oldest or newest, not newer" in done.stdout


def test_oldest_torch_gets_an_environment_of_its_own():
    done = command("make", "-n", "-B", "setup", "TORCH=oldest")
    assert done.returncode == 0
    assert (
        '.ci/set_up.py .venv-oldest-torch/.installed -r .ci/oldest-torch.txt -e ".[test]" -e ./rank_tools'
        in done.stdout
    )


def test_the_dev_container_is_set_up_by_make():
    container = json.loads(read(".devcontainer/devcontainer.json"))
    assert strangers(container["postCreateCommand"]) == set()
    base = re.match(r"FROM python:(\d+\.\d+)-", read(".devcontainer/Dockerfile"))
    (python,) = [
        dependency
        for dependency in yaml.safe_load(read("environment.yml"))["dependencies"]
        if "python=" in dependency
    ]
    assert base and python == f"python={base[1]}"
    packages = re.findall(r"missing\+=\(([^)]*)\)", read(".ci/run"))
    wanted = {name for line in packages for name in line.split() if not name.startswith("python3")}
    assert (
        wanted
        and [name for name in sorted(wanted) if name not in read(".devcontainer/Dockerfile").split()] == []
    )


def shown_commands(text: str) -> dict[str, list[str]]:
    """{command: the lines shown below it} of the blocks that begin with ``$ ``."""
    blocks = re.findall(r"^```\n\$ (.+)\n((?:(?!```).*\n)*)```$", text, re.MULTILINE)
    return {command: output.splitlines() for command, output in blocks}


MODULES = {
    "rank-check": "checklist",
    "rank-doctor": "doctor",
    "rank-plan": "planner",
    "rank-replay": "replay",
}


def missing_lines(command_line: str, shown: list[str], folder: Path) -> list[str]:
    """Those of the lines that the command of one of our tools does not print, in ``folder``."""
    program, *arguments = command_line.split()
    for name in ("labs", "notebooks"):
        (folder / name).symlink_to(ROOT / name)
    module = MODULES[Path(program).name]
    printed = python("-m", f"rank_tools.{module}", *arguments, cwd=folder).stdout.splitlines()
    return [line for line in shown if line not in printed]


def test_a_clean_system_gets_the_commands_of_the_readme():
    commands = readme_commands(read("README.md"))
    assert commands[1:] == ["cd rank-by-rank", "make lab", "make fit", "make test"]


SHOWN = shown_commands(read("README.md"))


def test_the_readme_shows_five_tools_at_work():
    assert len(SHOWN) == 5 and all(SHOWN.values())


@pytest.mark.parametrize(
    "tool",
    [
        "rank-check",
        "rank-plan",
        pytest.param("rank-doctor", marks=pytest.mark.slow),
        pytest.param("rank-replay", marks=pytest.mark.slow),
    ],
)
def test_what_the_readme_shows_is_what_a_tool_prints(tool: str, tmp_path: Path):
    (shown,) = [(line, lines) for line, lines in SHOWN.items() if tool in line.partition(" ")[0]]
    line, lines = shown
    assert missing_lines(line, [*lines, "no such line"], tmp_path) == ["no such line"]


def test_the_layout_that_is_told_is_that_of_the_course():
    layout = read("notebooks/using.md").partition("## Layout")[2]
    places = re.findall(r"^\| `([\w/]+/)`", layout, re.MULTILINE) + re.findall(r"`(tests/\w+/)`", layout)
    assert {
        "notebooks/",
        "labs/",
        "labs/lesson_NN/",
        "shared/",
        "rank_tools/",
        "tests/rules/",
    } <= set(places)
    assert [place for place in places if not list(ROOT.glob(place.replace("NN", "*")))] == []
