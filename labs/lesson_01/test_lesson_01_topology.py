"""Lesson 01: reports that do not fit are noticed, and its lines for Slurm start a script there."""

import re

import nbformat
import pytest
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.loading import load_file
from tests.helpers import ROOT

from lesson_27 import needs, slurm

REPORTS = ROOT / "labs" / "lesson_01" / "proof_reports.py"
WHO = ROOT / "labs" / "lab_01_who.py"
FENCE = re.compile(r"^```\n(export MASTER_ADDR=.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What 3 + 4 processes say, in a process that is rank 4 of 7."""
    monkeypatch.setattr(dist, "get_rank", lambda: 4)
    monkeypatch.setattr(dist, "get_world_size", lambda: 7)
    gathered = []
    for node, size in enumerate((3, 4)):
        for local_rank in range(size):
            rank = len(gathered)
            report = {"rank": rank, "local_rank": local_rank, "node": node, "nodes": 2, "pid": 100 + rank}
            gathered.append(report | {"world_size": 7, "local_world_size": size})
    return gathered


def test_reports_that_fit_are_accepted(reports: list[dict]):
    load_file(REPORTS).check(reports[4], reports)


@pytest.mark.parametrize(
    ("rank", "field", "value", "expected"),
    [
        (2, "rank", 1, "ranks count from 0"),
        (5, "local_rank", 1, "local ranks count from 0"),
        (4, "rank", 5, "the rank is what counting gives"),
        (0, "node", 1, "the rank is what counting gives"),
        (4, "nodes", 3, "each node has reported"),
        (6, "pid", 105, "each rank is a process of its own"),
        (4, "world_size", 8, "the group agrees"),
    ],
)
def test_reports_that_do_not_fit_are_told(
    rank: int, field: str, value: int, expected: str, reports: list[dict]
):
    reports[rank][field] = value
    with pytest.raises(CourseError, match=expected):
        load_file(REPORTS).check(reports[4], reports)


@pytest.mark.slow
def test_the_lines_for_slurm_start_a_script_on_nodes_of_unequal_size():
    reason = needs.slurm()
    if reason:
        pytest.skip(reason)
    notebook = nbformat.read(ROOT / "notebooks" / "01_topology.ipynb", 4)
    (lines,) = [found for cell in notebook.cells for found in FENCE.findall(cell.source)]
    with slurm.Slurm(slurm.ADDRESSES[:2]) as cluster:  # nodes of 4 cores each
        script = cluster.folder / "job.sh"
        script.write_text("#!/bin/bash\n" + lines.replace("train.py", str(WHO)), encoding="utf-8")
        of_seven = ("--nodes=2", "--ntasks=7", "--output=out", "--error=err")
        number = cluster.submit(*of_seven, str(script), folder=cluster.folder)
        cluster.until(lambda: cluster.state(number) in slurm.ENDED, "the job's end")
        said = (cluster.folder / "out").read_text(encoding="utf-8")
        assert cluster.state(number) == "COMPLETED", (cluster.folder / "err").read_text(encoding="utf-8")
    places = [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1)]
    expected = [f"rank {r} of 7: local rank {here} on node {node}" for r, (here, node) in enumerate(places)]
    assert said.splitlines()[1:] == expected
