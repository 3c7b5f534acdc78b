"""A mistake of the reader's is told in one line, and the run is red."""

from pathlib import Path

import IPython
import nbformat
import pytest

from shared.runtime import notebook
from shared.runtime.errors import CourseError, InputError
from shared.runtime.exercises import LABS
from tests.helpers import LESSON_PATHS, ROOT, SCRIPTS
from tests.kernels import run_papermill
from tests.launch import Job, run_job, warm_torchrun

slow = pytest.mark.slow
BAD_SIZES = [0, 99, "2", 2.0, True]
RANGE = "InputError: WORLD_SIZE must be a whole number from 1 to 8, not {!r}"


@pytest.mark.parametrize("size", BAD_SIZES, ids=repr)
def test_a_bad_world_size_is_refused(size: object):
    with pytest.raises(InputError) as caught:
        notebook.world_size(size)
    assert f"InputError: {caught.value}" == RANGE.format(size)


def test_a_good_world_size_is_returned():
    assert [notebook.world_size(size) for size in (1, 2, 8)] == [1, 2, 8]
    with pytest.raises(InputError, match="from 2 to 4, not 1"):
        notebook.world_size(1, smallest=2, largest=4)


@slow
def test_a_lesson_refuses_a_bad_world_size(checkout: Path):
    path = checkout / "notebooks" / LESSON_PATHS[0].name
    assert run_papermill(path, checkout, WORLD_SIZE="two") == RANGE.format("two")
    executed = nbformat.read(path.with_suffix(".done.ipynb"), 4)
    assert not any(cell.execution_count for cell in executed.cells[10:] if cell.cell_type == "code")


@slow
def test_a_lab_without_torchrun_says_how_to_start_it():
    done = run_job(Job(ROOT / "labs" / "lesson_00" / "proof_digits.py", ranks=0))
    assert done.returncode == 1
    assert done.stdout == (
        "RANK, LOCAL_RANK, WORLD_SIZE not set. Start a lab with torchrun: "
        "torchrun --standalone --nproc-per-node=2 LAB.py\n"
    )


@slow
def test_too_few_ranks_are_told_in_one_line():
    done = warm_torchrun(SCRIPTS / "one_rank_ends.py", "exit", ranks=1)
    assert done.returncode == 1
    expected = "this lab runs with 2 to 3 ranks, not 1: change --nproc-per-node"
    assert done.stdout.splitlines()[0] == expected


@slow
def test_an_unknown_device_is_told_in_one_line():
    done = warm_torchrun(SCRIPTS / "group_at_work.py", ranks=1, RANK_BY_RANK_DEVICE="gpu")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "RANK_BY_RANK_DEVICE is 'gpu'; set it to cpu or cuda"


def test_set_up_outside_of_a_notebook_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    with pytest.raises(CourseError, match="is for notebooks; start a lab with torchrun"):
        notebook.setup()


def test_an_old_ipython_is_refused(monkeypatch: pytest.MonkeyPatch):
    class OldShell:
        def has_trait(self, name: str) -> bool:
            return False

    monkeypatch.setattr(IPython, "get_ipython", OldShell)
    monkeypatch.chdir(ROOT)
    with pytest.raises(CourseError, match="IPython is too old to notice a failing command"):
        notebook.setup()


def test_a_file_cannot_be_written_into_a_missing_folder():
    with pytest.raises(InputError, match="there is no folder no-such-folder"):
        notebook._writefile("no-such-folder/lab.py", "")


def test_the_labs_are_found_in_this_checkout():
    assert LABS == ROOT / "labs"
