"""Lesson 26: each row of the table of failures can be provoked again, and says the same."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.helpers import ROOT, python
from tests.rules.links import link_problems

from lesson_26.gallery import CASES, page_of

TABLE = ROOT / "notebooks" / "failures.md"
GALLERY = ROOT / "labs" / "lesson_26"
AT_LEAST = 35


def rows_of(text: str) -> list[str]:
    heads = ("| You see", "| Where", "|---")
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(heads)]


def test_each_row_has_a_case_or_a_source_and_a_lesson():
    rows = rows_of(TABLE.read_text(encoding="utf-8"))
    assert len(rows) >= AT_LEAST
    cases = "".join(path.read_text(encoding="utf-8") for path in GALLERY.glob("*.py"))
    for row in rows:
        _, *cells, _ = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        *_, lesson, origin = cells
        is_case = len(cells) == 6 and f"def {origin.strip('`')}(" in cases
        is_sourced = len(cells) == 5 and re.fullmatch(r"\[.+\]\(https://.+\)", origin)
        assert is_case or is_sourced, row
        assert re.fullmatch(r"\[(\d\d)\]\(\1_\w+\.ipynb\)", lesson), row
    assert link_problems(TABLE, ROOT) == []


@pytest.mark.parametrize(
    "seen",
    [
        "Watchdog caught collective operation timeout",
        "exitcode: -9",
        "Bus error",
        "No backend type associated with device type cpu",
        "CUDA out of memory",
        "Address family not supported",
        "NaN found in input tensor",
        "oom-kill",
        "Timed out waiting 1800000ms",
        "EADDRINUSE",
        "ncclSystemError",
        "ncclRemoteError",
        "Duplicate GPU detected",
        "unhandled cuda error",
        "device-side assert triggered",
        "an illegal memory access",
        "ibv_modify_qp",
        "Xid",
        "_orig_mod.",
        "aten._foreach_norm",
        "for send operation to complete",
        "Connection reset by peer",
        'the "should dump" flag on TCPStore',
        "but store->get('0') got error",
        "Some NCCL operations have failed",
        "receiving 1048576 bytes instead of",
        "OOMKilled",
        "RendezvousTimeoutError",
        "address already in use",
        "ChildFailedError",
        "The connection to the C10d store has failed",
        "NCCL error in",
        "Aborting process on rank",
    ],
)
def test_a_failure_is_found_by_a_piece_of_its_text(seen: str):
    assert seen in TABLE.read_text(encoding="utf-8")


def messages_in(page: str) -> dict[str, str]:
    """{name of a case: the first cell of its row, without its marks}."""
    found = {}
    for row in rows_of(page):
        _, first, *_, name, _ = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        found[name.strip("`")] = first.strip("`").replace("\\|", "|")
    return found


def test_the_page_is_what_the_gallery_writes():
    """All but messages, which come from runs. A row is written in a module of the gallery, not by hand."""
    page = TABLE.read_text(encoding="utf-8")
    messages = messages_in(page)
    rows = [{**asdict(case), "text": messages[case.name]} for case in CASES]
    assert page_of(rows) == page


@pytest.mark.slow
def test_each_row_is_provoked_again_and_says_the_same(tmp_path: Path):
    done = python(GALLERY / "gallery.py", "--write", tmp_path / "failures.md")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "failures.md").read_text(encoding="utf-8") == TABLE.read_text(encoding="utf-8")
