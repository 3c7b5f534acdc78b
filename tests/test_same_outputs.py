"""The comparison of two executions finds what differs, and nothing else."""

from collections.abc import Callable

import pytest
from nbformat import NotebookNode

from shared.tools.outputs import clean, compare, not_run, same_text
from tests.shown import failed, picture, shown


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("4 ranks", "4 ranks", True),
        ("4 ranks", "3 ranks", False),
        ("loss 0.500", "loss 0.505", True),
        ("loss 0.500", "loss 0.520", False),
        ("loss 0.500", "loss -0.500", False),
        ("sent 1,797 B", "sent 1,798 B", False),
        ("sent 1,797.0 B", "sent 1,798.0 B", True),
        ("off by 1.2e-16", "off by 3.4e-13", True),
        ("off by 1.2e-16", "off by 3.4e-09", False),
        ("off by 0.0", "off by 1e-12", True),
        ("the loss falls", "the loss rises", False),
        ("a\nb", "a", False),
        ("[0.1, 0.2]", "[0.1, 0.2, 0.3]", False),
        ("torch 2.15.0", "torch 2.15.1", False),
        ("loss 1.0", "loss nan", False),
        ("", "", True),
    ],
)
def test_texts_are_the_same_up_to_rounding(expected: str, actual: str, same: bool):
    assert same_text(expected, actual) is same


def test_only_cells_that_differ_are_named():
    assert compare(shown("loss 0.50, 4 ranks"), shown("loss 0.501, 4 ranks")) == []
    (difference,) = compare(shown("4 ranks"), shown("3 ranks"))
    assert difference == "cell 0 shows\n3 ranks\nbut committed is\n4 ranks"


def test_a_cell_tagged_timing_may_differ():
    assert compare(shown("3.1 s", "timing"), shown("9.9 s, and more", "timing")) == []
    assert compare(shown("3.1 s", "other"), shown("9.9 s, and more", "other")) != []


def test_what_torch_says_of_the_network_is_no_difference():
    told = "[W1126 01:45:41.195485962 {}] [c10d] The hostname of the client socket cannot be retrieved.\n"
    assert compare(shown("4 ranks"), shown(told.format("socket.cpp:207") + "4 ranks")) == []
    assert compare(shown("4 ranks"), shown(told.format("reducer.cpp:207") + "4 ranks")) != []


def test_a_cell_tagged_varies_may_differ_in_its_numbers():
    committed = shown("PowerSGD   98.3%, after  80 steps", "varies")
    assert compare(committed, shown("PowerSGD  100.0%, after 112 steps", "varies")) == []
    assert compare(committed, shown("PowerSGD   98.3%, not reached", "varies")) != []
    assert compare(committed, shown("DiLoCo     98.3%, after  80 steps", "varies")) != []


CHECK = "!torchrun --standalone --nproc-per-node={WORLD_SIZE} ../labs/lesson_00/check.py"


def changed(notebook: NotebookNode, source: str = "1 + 1", ran: bool = True) -> NotebookNode:
    (cell,) = notebook.cells
    cell.source = source
    if not ran:
        cell.outputs, cell.execution_count = [], None
    return notebook


@pytest.mark.parametrize(
    ("committed", "executed"),
    [
        (changed(shown("right: 2 of 2"), CHECK), changed(shown("not started"), CHECK)),
        (changed(shown(""), ran=False), shown("4 ranks")),
        (failed(), shown("4 ranks")),
        (shown("4 machines"), shown("not run here: ip was not found")),
    ],
    ids=["a verdict", "a cell that was never run", "a run that failed", "not run here"],
)
def test_what_is_the_readers_own_or_cannot_be_run_is_not_compared(
    committed: NotebookNode, executed: NotebookNode
):
    assert compare(committed, executed) == []


def test_what_was_not_run_is_told_once():
    notebook = shown("not run here: ip was not found\nnot run here: ip was not found\n")
    assert not_run(notebook) == ["not run here: ip was not found"]
    assert not_run(shown("it is not run here: no")) == []


@pytest.mark.parametrize(
    "other",
    [picture({"image/png": {"alt": "A ring"}}), failed(), shown("")],
    ids=["picture", "error", "nothing"],
)
def test_another_kind_of_output_differs(other: NotebookNode):
    assert compare(shown("text"), other) != []


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("step 1/9\rstep 9/9\rdone\n", "done\n"),
    ],
)
def test_cleaning_drops_what_changes_from_run_to_run(text: str, cleaned: str):
    assert text_after(clean, shown(text)) == cleaned


def text_after(change: Callable, notebook: NotebookNode) -> str:
    notebook.metadata["author"] = "ada"
    notebook.cells[0].metadata["execution"] = {"started": "now"}
    change(notebook)
    assert "author" not in notebook.metadata
    assert set(notebook.cells[0].metadata) <= {"tags", "jupyter"}
    assert notebook.cells[0].id == "cell-00"
    return notebook.cells[0].outputs[0].text
