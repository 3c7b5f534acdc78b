"""The steps of lesson 10 give its script, each of them runs, and faulty batch norms are found."""

from pathlib import Path

import pytest
from torch import nn

from shared.lesson_10 import diffs
from shared.lesson_10.sync_batch_norm import convert_batch_norm
from shared.runtime.errors import InputError
from shared.tools import steps
from tests.helpers import ROOT, SCRIPTS
from tests.launch import Job, run_job, warm_torchrun

TRAIN = ROOT / "labs" / "lab_10_train.py"
DIFFS = diffs.diffs_of(steps.NOTEBOOK)
VERSIONS = diffs.versions(steps.FIRST.read_text(encoding="utf-8"), DIFFS)


def test_the_steps_reproduce_the_script():
    assert len(VERSIONS) == 16
    assert VERSIONS[-1] == TRAIN.read_text(encoding="utf-8")
    assert [diffs.difference(*pair) for pair in zip(VERSIONS, VERSIONS[1:], strict=False)] == DIFFS


@pytest.mark.parametrize(
    ("before", "after"),
    [("a\nb\nc\n", "a\nx\nc\n"), ("", "a\nb\n"), ("a\nb\n", ""), ("a\nb\n", "z\na\nb\nc\n"), ("a\n", "a\n")],
)
def test_a_difference_applied_gives_what_came_after(before: str, after: str):
    assert diffs.apply(before, diffs.difference(before, after)) == after


def test_a_difference_shows_three_lines_around_a_change_and_where_it_is():
    before = "def f():\n" + "".join(f"    {number}\n" for number in range(9))
    assert diffs.difference(before, before.replace("5", "five")) == (
        "@@ -4,7 +4,7 @@ def f\n     2\n     3\n     4\n-    5\n+    five\n     6\n     7\n     8\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\nB\nc\n", "line 2: -b"), ("A\nb\nc\n", "line 1:  a"), ("a\nb\n", "line 3:  c")],
)
def test_a_difference_that_does_not_fit_is_found(text: str, expected: str):
    with pytest.raises(InputError, match=f"the diff does not fit {expected}"):
        diffs.apply(text, diffs.difference("a\nb\nc\n", "a\nx\nc\n"))


@pytest.mark.slow
def test_the_script_runs_after_each_difference(tmp_path: Path):
    for number, text in enumerate(VERSIONS[:-1]):
        script = tmp_path / f"step_{number:02}.py"
        script.write_text(text, encoding="utf-8")
        done = run_job(Job(script, ("--epochs", "1"), ranks=0 if number == 0 else 2))
        assert done.returncode == 0, f"{number}: {done.stdout}"
        assert done.stdout.count('"epoch": 1') == 1, f"{number}: {done.stdout}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("nothing", None),
        ("local gradient", "2 rank(s), even shares, step 0: gradient of x: differs by"),
        ("biased", "1 rank(s), even shares, step 0: running_var: differs by"),
        ("talkative", "one collective per pass, not"),
    ],
)
def test_a_faulty_batch_norm_is_found(fault: str, expected: str | None, tmp_path: Path):
    done = warm_torchrun(SCRIPTS / "faulty_batch_norm.py", fault, ranks=4, RANK_BY_RANK_RESULTS=str(tmp_path))
    assert (done.returncode == 0) == (expected is None), done.stdout
    assert expected is None or expected in done.stdout


def test_what_our_batch_norm_does_not_do_is_refused():
    with pytest.raises(ValueError, match="only with affine"):
        convert_batch_norm(nn.Sequential(nn.BatchNorm1d(3, affine=False)))
