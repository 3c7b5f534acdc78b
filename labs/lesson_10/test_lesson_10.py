"""The differences of lesson 10 fit, and each of their scripts runs; our batch norm fits into a script."""

import re
from pathlib import Path

import nbformat
import pytest

from shared.runtime.errors import InputError
from shared.tools.course import SCRIPT
from shared.tools.diffs import coloured, fenced
from tests.helpers import ROOT
from tests.launch import Job, run_job, warm_torchrun

from lesson_10 import diffs

NOTEBOOK = ROOT / "notebooks" / "10_training_template.ipynb"
DIFFS = diffs.diffs_of(NOTEBOOK)
FIRST = ROOT / "labs" / "lab_10_one_process.py"
VERSIONS = diffs.versions(FIRST.read_text(encoding="utf-8"), DIFFS)


def test_the_differences_fit_and_are_short():
    assert len(VERSIONS) == 3
    assert [diffs.difference(*pair) for pair in zip(VERSIONS, VERSIONS[1:], strict=False)] == DIFFS
    assert max(len(diff.splitlines()) for diff in DIFFS) <= 60


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


def test_a_fenced_difference_is_coloured_and_can_be_had_back():
    text = "One:\n\n```diff\n a & b\n-if a < b:\n+if a:\n```\n\nTwo.\n"
    shown = coloured(text)
    assert '">-if a &lt; b:</span>\n<span style="background-color: ' in shown and "```" not in shown
    assert coloured(shown) == shown and fenced(shown) == text
    assert diffs.diffs_of(NOTEBOOK) and "```diff" not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\nB\nc\n", "line 2: -b"), ("A\nb\nc\n", "line 1:  a"), ("a\nb\n", "line 3:  c")],
)
def test_a_difference_that_does_not_fit_is_found(text: str, expected: str):
    with pytest.raises(InputError, match=f"the diff does not fit {expected}"):
        diffs.apply(text, diffs.difference("a\nb\nc\n", "a\nx\nc\n"))


def test_excerpts_of_the_script_are_what_its_files_say():
    files = "".join((ROOT / name).read_text(encoding="utf-8") for name in sorted(SCRIPT))
    stripped = "\n".join(line.strip() for line in files.splitlines())
    cells = nbformat.read(NOTEBOOK, 4).cells
    [cell] = [cell for cell in cells if cell.source.startswith("### The script to copy")]
    excerpts = re.findall(r"```python\n(.*?)\n```", cell.source, re.DOTALL)
    assert excerpts
    for excerpt in excerpts:
        assert len(excerpt.splitlines()) <= 15
        assert "\n".join(line.strip() for line in excerpt.splitlines()) in stripped


@pytest.mark.slow
def test_the_script_runs_after_each_difference(tmp_path: Path):
    for number, text in enumerate(VERSIONS):
        script = tmp_path / f"step_{number:02}.py"
        script.write_text(text, encoding="utf-8")
        done = run_job(Job(script, ("--epochs", "1"), ranks=0 if number == 0 else 2))
        assert done.returncode == 0, f"{number}: {done.stdout}"
        assert done.stdout.count('"epoch": 1') == 1, f"{number}: {done.stdout}"


@pytest.mark.slow
def test_our_batch_norm_works_in_a_resnet_and_with_uneven_micro_batches():
    done = warm_torchrun(Path(__file__).with_name("batch_norm_in_resnet.py"), PYTHONPATH=str(ROOT / "labs"))
    assert done.returncode == 0, done.stdout
    assert "in micro-batches; the loss is finite: True\n" in done.stdout
