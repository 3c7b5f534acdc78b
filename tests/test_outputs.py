"""Committed outputs come from the code as it is and leak nothing."""

import socket

import pytest
from nbformat import NotebookNode

from shared.tools.lessons import cells_of, read_lessons
from shared.tools.outputs import problems
from shared.tools.refresh import is_fresh
from tests.rules import tell
from tests.shown import failed, picture, shown

LESSONS = read_lessons()
HOST = "a-machine"


def not_executed() -> NotebookNode:
    notebook = shown("text")
    notebook.cells[0].execution_count = None
    return notebook


def test_outputs_are_fresh():
    stale = [f"{lesson.path.name} is stale" for lesson in LESSONS if not is_fresh(lesson)]
    tell(stale, cure="run `make refresh`")


def test_outputs_are_complete_and_leak_nothing():
    complaints = []
    for lesson in LESSONS:
        complaints += [
            f"{lesson.path.name}: {problem}" for problem in problems(lesson.notebook, socket.gethostname())
        ]
        if not any(cell.outputs for cell in cells_of(lesson.notebook, "code")):
            complaints.append(f"{lesson.path.name} shows nothing")
    tell(complaints)


@pytest.mark.parametrize(
    ("notebook", "expected"),
    [
        (shown("in /home/ada/course/lab.py"), "a path of this machine"),
        (shown("['/tmp/x']"), "a path of this machine"),
        (shown("worker pid: 4711"), "a process id"),
        (shown("UserWarning: slow"), "a warning"),
        (shown("[W703 12:00:00.1 socket.cpp:1] retry"), "a warning"),
        (shown("W1120 14:00:00.123000 31414 torch/api.py:1] closing"), "a warning"),
        (shown("<object at 0x7f3a2b4c5d60>"), "an address in memory"),
        (shown(f"on {HOST}:29500"), "this machine's name"),
        (failed(), "holds an error: ValueError"),
        (not_executed(), "was not executed"),
        (picture({}), "a picture without alt text"),
    ],
)
def test_what_must_not_be_committed_is_found(notebook: NotebookNode, expected: str):
    complaints = problems(notebook, HOST)
    assert [expected in problem for problem in complaints] == [True]


@pytest.mark.parametrize(
    "notebook",
    [
        shown("Wrote ../labs/lab_00_hello.py, 3 / 4, and/or, https://example.org/home/x"),
        shown("rapid 12, warnings: none, 0x10"),
        picture({"image/png": {"alt": "A ring"}}),
    ],
)
def test_what_may_be_committed_is_not_complained_about(notebook: NotebookNode):
    assert problems(notebook, HOST) == []


@pytest.mark.parametrize("host", ["pc", "localhost"])
def test_a_common_word_as_name_of_the_machine_is_no_leak(host: str):
    assert problems(shown(f"on {host} it runs"), host) == []
