"""Lesson 12: who waits for whom is found in recorded times, and each link of the chain in a run's log."""

import copy

import pytest

from shared.runtime.errors import CourseError
from shared.runtime.loading import load_file
from tests.helpers import ROOT


@pytest.fixture(scope="module")
def skew():
    return load_file(ROOT / "labs" / "lab_12_skew.py")


def recorded() -> list[list[dict]]:
    """Two ranks, two steps of 1 s; rank 1 is ready later."""
    steps = [
        [{"began": 0.0, "ready": 0.2, "done": 1.1}, {"began": 1.1, "ready": 1.3, "done": 2.1}],
        [{"began": 0.0, "ready": 1.0, "done": 1.1}, {"began": 1.1, "ready": 2.0, "done": 2.1}],
    ]
    return copy.deepcopy(steps)


def test_true_times_pass(skew):
    skew.check_order("run", recorded(), every=1, at_least_s=2.0)


def test_a_rank_that_did_not_wait_is_found(skew):
    steps = recorded()
    steps[0][1]["done"] = 1.9
    with pytest.raises(CourseError, match="run, step 1: a rank was done before the last one was ready"):
        skew.check_order("run", steps, every=1, at_least_s=2.0)
    skew.check_order("run", steps[::-1], every=3, at_least_s=2.0)  # nothing to wait for


def test_a_run_that_was_too_fast_is_found(skew):
    with pytest.raises(CourseError, match=r"run: 2.100 s, but the sleeps alone take 2.200 s"):
        skew.check_order("run", recorded(), every=1, at_least_s=2.2)


@pytest.mark.parametrize(("every", "expected"), [(1, 0.48), (2, 0.28)])
def test_the_rule_on_paper(skew, every: int, expected: float):
    cfg = skew.Config(rounds=2, fast_s=0.02, slow_s=0.12)
    assert skew.least_s(skew.in_turns, every, cfg, ranks=2) == pytest.approx(expected)
    assert skew.least_s(skew.always_one, every, cfg, ranks=2) == pytest.approx(0.48)


LINKS = [
    "rank 1 hangs in step 10, pid 77, complete: step_00000004",
    "[rank 0] File, line 1, in train_step\n[rank 0]     loss.backward()\nTimed out waiting 5000ms for recv",
    "Sending process 77 closing signal SIGTERM",
    'File "lab_12_hang.py", line 1 in never_comes_back',
    "rank 1 notes SIGTERM and goes on",
    "Unable to shutdown process 77 via 15, forcefully exiting via 9",
    "failed (exitcode: 1) local_rank: 0 (pid: 76)",
    "[default] Worker group FAILED. 1/1 attempts left; will restart worker group",
    "[default] Starting worker group",
    "going on from step_00000004",
]
STEPS = [f"rank 0 has made step {step}" for step in (*range(1, 10), *range(5, 30))]


@pytest.fixture(scope="module")
def chain():
    return load_file(ROOT / "labs" / "lab_12_chain.py")


def test_a_chain_of_all_links_in_their_order_passes(chain, capsys: pytest.CaptureFixture[str]):
    chain.check_chain("\n".join(LINKS + STEPS), 2, chain.Config())
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "steps 1 to 9, then 5 to 29: 5 were made twice"


def test_a_link_that_is_missing_or_too_early_breaks_the_chain(chain):
    for place in range(len(LINKS)):
        missing = LINKS[:place] + LINKS[place + 1 :]
        too_early = [LINKS[place], *missing]
        with pytest.raises(CourseError, match="the chain breaks"):
            chain.check_chain("\n".join(missing + STEPS), 2, chain.Config())
        if place:
            with pytest.raises(CourseError, match="the chain breaks"):
                chain.check_chain("\n".join(too_early + STEPS), 2, chain.Config())


@pytest.mark.parametrize(
    ("place", "old", "new", "expected"),
    [
        (0, "step_00000004", "step_00000008", "they go on from step_00000008"),
        (2, "process 77", "process 76", "the agent sends SIGTERM to rank 1"),
        (6, "local_rank: 0", "local_rank: 1", "rank 1 was to hang, but it failed"),
    ],
)
def test_a_link_of_another_rank_or_checkpoint_is_found(chain, place: int, old: str, new: str, expected: str):
    links = list(LINKS)
    links[place] = links[place].replace(old, new)
    with pytest.raises(CourseError, match=expected):
        chain.check_chain("\n".join(links + STEPS), 2, chain.Config())


def test_a_step_that_is_left_out_is_found(chain):
    with pytest.raises(CourseError, match="the steps are"):
        chain.check_chain("\n".join(LINKS + STEPS[:12] + STEPS[13:]), 2, chain.Config())
