"""How a lab runs and ends: its own exit code, its own error, its ranks in order."""

import json
import re
from pathlib import Path

import pytest
import torch

from shared.runtime import group, results
from shared.runtime.errors import CourseError
from tests.helpers import SCRIPTS, python, torchrun
from tests.launch import warm_torchrun

slow = pytest.mark.slow
ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s+: (\d+).*?exitcode\s+: (-?\d+)", re.DOTALL)


@pytest.fixture(scope="module")
def endings() -> dict[str, dict]:
    done = python(SCRIPTS / "run_endings.py")
    return json.loads(done.stdout.splitlines()[-1])


@slow
@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("success", 0, "done\n"),
        ("atexit", 0, "good-bye\n"),
        ("exit 0", 0, ""),
        ("exit 3", 3, ""),
        ("exit text", 1, "a last word\n"),
        ("interrupt", 130, ""),
        ("course error", 1, "[rank 1] what to do\n"),
        ("input error, rank 0", 1, "what is wrong\n"),
        ("input error, rank 1", 1, ""),
    ],
)
def test_a_lab_ends_with_its_own_code_and_words(case: str, code: int, text: str, endings: dict[str, dict]):
    assert endings[case] == {"code": code, "text": text}


@slow
def test_each_line_of_a_traceback_bears_the_rank(endings: dict[str, dict]):
    assert endings["exception"]["code"] == 1
    lines = endings["exception"]["text"].splitlines()
    assert all(line.startswith("[rank 1] ") for line in lines)
    assert lines[0] == "[rank 1] Traceback (most recent call last):"
    assert "in inner_failure" in lines[1], "it begins with the lab's own lines"
    assert lines[-2:] == ["[rank 1] ValueError: first line", "[rank 1] second line"]


@slow
@pytest.mark.parametrize(("how", "code"), [("exception", "1"), ("exit", "3")])
def test_torchrun_names_the_rank_that_failed_first(how: str, code: str):
    done = torchrun(SCRIPTS / "one_rank_ends.py", how, ranks=3)
    assert done.returncode == 1
    assert ROOT_CAUSE.search(done.stdout).groups() == ("1", code)
    marked = {line[:8] for line in done.stdout.splitlines() if line.startswith("[rank ")}
    assert marked == ({"[rank 1]"} if how == "exception" else set()), "an echo of the failure is silent"


@slow
def test_an_input_error_is_told_once_for_all_ranks():
    done = warm_torchrun(SCRIPTS / "one_rank_ends.py", "input", ranks=3)
    assert (done.returncode, done.stdout) == (1, "every rank finds the same mistake\n")


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Lines printed by four ranks, and the folder of their results."""
    folder = tmp_path_factory.mktemp("results")
    done = warm_torchrun(SCRIPTS / "group_at_work.py", ranks=4, RANK_BY_RANK_RESULTS=str(folder))
    assert done.returncode == 0, done.stdout
    return done.stdout.replace("\r", "\n").splitlines(), folder


@slow
def test_prints_come_in_rank_order(at_work: tuple[list[str], Path]):
    lines, _ = at_work
    assert [line for line in lines if "reversed" in line] == [f"reversed {rank}" for rank in (3, 2, 1, 0)]
    assert [line for line in lines if "ordered" in line and "un" not in line] == [
        f"[rank {rank}] ordered {rank}" for rank in range(4)
    ]
    assert [line for line in lines if "alone" in line] == ["alone 0"]
    assert {line.split()[1] for line in lines if line.startswith("bar")} == {"0:"}


@slow
def test_lines_of_two_ranks_never_mix(at_work: tuple[list[str], Path]):
    lines = [line for line in at_work[0] if "unordered" in line]
    assert sorted(lines) == sorted(f"unordered {r} " + str(r) * 500 for r in range(4) for _ in range(100))


@slow
def test_the_ranks_that_took_part_are_reported(at_work: tuple[list[str], Path]):
    assert at_work[0][-1] == "ranks that took part: 0, 1, 2, 3 (of 4, gloo, cpu)"


@slow
def test_each_rank_records_draws_of_its_own(at_work: tuple[list[str], Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK_BY_RANK_RESULTS", str(at_work[1]))
    ranks = results.load_results("group_at_work", 4)
    assert [values["rank"] for values in ranks] == [0, 1, 2, 3]
    assert [values["steps"] for values in ranks] == [3] * 4
    for draws in zip(*(values["draws"] for values in ranks), strict=True):
        assert len(set(draws)) == 4
    assert [path.name for path in at_work[1].iterdir()] == ["group_at_work.4.json"]


@pytest.mark.parametrize("ranks", [[], [{}], [{}, None], [{}, {}, {}]])
def test_a_missing_rank_in_the_results_is_found(ranks: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK_BY_RANK_RESULTS", str(tmp_path))
    with pytest.raises(CourseError, match="no results of lab with 2"):
        results.load_results("lab", 2)
    path = tmp_path / "lab.2.json"
    path.write_text(json.dumps({"ranks": [{}, {}]}), encoding="utf-8")
    assert results.load_results("lab", 2) == [{}, {}]
    path.write_text(json.dumps({"ranks": ranks}), encoding="utf-8")
    with pytest.raises(CourseError, match="was to record 2 ranks"):
        results.load_results("lab", 2)


def test_a_silent_rank_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group.dist, "all_reduce", lambda tensor: None)
    who = group.Group(0, 0, 2, torch.device("cpu"), "gloo")
    with pytest.raises(CourseError, match=r"at the end, each of 2 ranks must be heard once: \[1, 0\]"):
        group._hear_every_rank(who, "at the end")
