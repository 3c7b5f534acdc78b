"""The tools beside the course: its labs, its page of faults, and what its table of strategies measures."""

import pytest

from rank_tools.checklist.report import check
from rank_tools.checklist.rules import RULES
from tests.helpers import ROOT
from tests.launch import warm_torchrun


def test_rank_check_finds_nothing_in_our_labs():
    done = check([str(path) for path in sorted((ROOT / "labs").glob("lab_*.py"))])
    assert (done.findings, done.errors) == ([], [])


def test_each_rule_has_a_place_on_the_page_of_ten_faults():
    page = (ROOT / "notebooks" / "rank_check.md").read_text(encoding="utf-8")
    assert [rule.name for rule in RULES if f"`{rule.code} {rule.name}`" not in page] == []
    assert [number for number in range(1, 11) if f"\n## {number}. " not in page] == []


@pytest.mark.slow
def test_each_row_of_lesson_22_is_as_rank_plan_says():
    done = warm_torchrun(ROOT / "tests" / "rows_of_lesson_22.py", ranks=4)
    assert done.returncode == 0, done.stdout
    rows = [line for line in done.stdout.splitlines() if " hands in " in line]
    assert len(rows) == 14
    assert "each: calls, bytes and storage as planned, on every rank" in done.stdout
