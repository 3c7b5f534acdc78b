"""The rooms of ``shared/`` import in one direction; each way to break that is found."""

import re
from pathlib import Path

import pytest

from shared.tools.rooms import picture, read_rooms
from tests.helpers import ROOT, python
from tests.mini_course import make_course, mini_notebook, write_lesson
from tests.rules import tell
from tests.rules.rooms import MAY_IMPORT, room_problems


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A course with the rooms as they are and one small lesson."""
    root = make_course(tmp_path / "course")
    assert room_problems(root) == []
    return root


def test_arrows_point_one_way():
    tell(room_problems(ROOT))


def test_each_room_has_modules():
    assert set(read_rooms(ROOT).names) == set(MAY_IMPORT)


def test_the_layout_in_the_readme_is_that_of_the_course():
    layout = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Layout")[2]
    places = re.findall(r"^\| `([\w/]+/)`", layout, re.MULTILINE) + re.findall(r"`(tests/\w+/)`", layout)
    assert {"notebooks/", "labs/", "labs/exercises/NN_name/", "shared/", "tests/rules/"} <= set(places)
    tell(f"{place} is not there" for place in places if not list(ROOT.glob(place.replace("NN_name", "*"))))


PLANTED = {
    "runtime imports comm": (
        "shared/runtime/ports.py",
        "from shared.comm.p2p import sendrecv",
        ["shared.runtime.ports imports shared.comm.p2p: runtime may not import from comm"],
    ),
    "inside of a function": (
        "shared/comm/p2p.py",
        "def f():\n    from shared.training import parity",
        ["shared.comm.p2p imports shared.training.parity: comm may not import from training"],
    ),
    "by a relative import": (
        "shared/runtime/ports.py",
        "from ..comm import p2p",
        ["shared.runtime.ports imports shared.comm.p2p: runtime may not import from comm"],
    ),
    "training imports tools": (
        "shared/training/parity.py",
        "import shared.tools.lessons",
        ["shared.training.parity imports shared.tools.lessons: training may not import from tools"],
    ),
    "the checklist imports a room": (
        "shared/checklist/script.py",
        "from shared.runtime.errors import CourseError",
        [
            "shared.checklist.script imports shared.runtime.errors: checklist may not import from runtime",
            "shared.checklist.script imports shared.runtime.errors: the checklist stands alone",
        ],
    ),
    "the checklist needs a package": (
        "shared/checklist/script.py",
        "import torch",
        ["shared.checklist.script imports torch: the checklist stands alone"],
    ),
    "the checklist names itself": (
        "shared/checklist/rules_data.py",
        "from shared.checklist.ranks import in_loop",
        ["shared.checklist.rules_data imports shared.checklist.ranks: the checklist stands alone"],
    ),
    "the doctor needs a package": (
        "shared/doctor/inside.py",
        "import torch",
        ["shared.doctor.inside imports torch: the doctor stands alone"],
    ),
    "the planner needs a package": (
        "shared/planner/models.py",
        "import torch",
        ["shared.planner.models imports torch: the planner stands alone"],
    ),
    "a circle": (
        "shared/runtime/errors.py",
        "from shared.runtime import report, run",
        ["these import each other in a circle: shared.runtime.errors, shared.runtime.run"],
    ),
    "a module in no room": (
        "shared/corridor.py",
        "x = 1",
        [
            "shared.corridor lies in none of the rooms "
            "runtime, comm, training, checklist, doctor, planner, tools"
        ],
    ),
    "a lab imports a tool": (
        "labs/lab_90_small.py",
        "from shared.tools import lessons",
        ["labs/lab_90_small.py imports shared.tools.lessons: tools are for authors"],
    ),
    "a lab runs a tool": (
        "labs/lab_90_small.py",
        "COMMAND = 'python -m shared.tools.sync'",
        ["labs/lab_90_small.py runs shared.tools.sync: tools are for authors"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line", "expected"), PLANTED.values(), ids=PLANTED)
def test_a_wrong_arrow_is_found(name: str, line: str, expected: list[str], course: Path):
    path = course / name
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    path.write_text(f"{before}\n{line}\n", encoding="utf-8")
    assert room_problems(course) == expected


@pytest.mark.slow
def test_all_wrong_arrows_are_told_at_once(course: Path):
    for name, line, _ in PLANTED.values():
        path = course / name
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        path.write_text(f"{before}\n{line}\n", encoding="utf-8")
    told = room_problems(course)
    for _, _, expected in PLANTED.values():
        for problem in expected:
            assert problem in told or "circle" in problem  # some circles have joined


@pytest.mark.slow
@pytest.mark.parametrize("source", ["from shared.tools import lessons", "!python -m shared.tools.sync"])
def test_a_notebook_may_not_use_a_tool(source: str, course: Path):
    notebook = mini_notebook()
    notebook.cells[-3].source = source
    write_lesson(course, notebook)
    (problem,) = room_problems(course)
    assert problem.startswith("notebooks/90_small.ipynb")
    assert problem.endswith("tools are for authors")


@pytest.mark.slow
def test_a_picture_shows_who_imports_whom(course: Path):
    lines = [line.strip() for line in picture(course).splitlines()]
    assert "comm --> runtime" in lines
    assert "lessons --> runtime" in lines
    assert "lessons --> training" not in lines  # the small lesson needs no more
    assert not [line for line in lines if line.startswith(("runtime -->", "checklist -->"))]
    (description,) = [line for line in lines if line.startswith("accDescr")]
    assert "comm imports runtime" in description


@pytest.mark.slow
def test_the_tool_counts_modules_arrows_and_circles(course: Path):
    done = python("-m", "shared.tools.rooms", root=course, cwd=course)
    assert done.returncode == 0
    rooms = read_rooms(course)
    assert f"{len(rooms.modules)} modules, {len(rooms.arrows)} arrows, 0 circles" in done.stdout
    with (course / "shared/runtime/errors.py").open("a", encoding="utf-8") as file:
        file.write("from shared.runtime import run\n")
    done = python("-m", "shared.tools.rooms", root=course, cwd=course)
    assert done.returncode == 1
    assert "circle: shared.runtime.errors, shared.runtime.run" in done.stdout
