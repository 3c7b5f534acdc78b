"""What nccl would refuse, ignore and wait for, judged from the calls of ranks that ran on gloo."""

import pickle
from pathlib import Path

import pytest
import torch

from shared.comm.nccl_rules import Issued, verdict
from tests.helpers import ROOT, SCRIPTS
from tests.launch import warm_torchrun
from tests.rules.labs import command_of, exit_code_of
from tests.test_plain_labs import PLAIN_LABS

# What stands in a lesson's text. All other plain labs are as nccl wants them.
KNOWN = {
    "lab_03_tags": {"ignores", "refuses", "mixes up", "hangs"},  # a receive from anyone takes nothing
    "lab_16_executor": {"ignores"},
}
NOT_WATCHED = {
    "lab_03_stuck": "hangs on purpose, which the lesson says",
    "lab_12_one_more": "waits for a rank that has no batch left, until its time-out, which the lesson says",
    "lab_11_fsdp": "saves on 4 ranks into a folder that 2 ranks are given",
    "lab_11_loop": "an example with gloo, which saves where it is started",
    "lab_13_restart": "kills a rank and is started again by torchrun",
}
WATCHED = [lab for lab in PLAIN_LABS if lab.stem not in NOT_WATCHED]


def call(op: str, rank: int = 0, peer: int | None = None, entry: int = 0, **more: object) -> Issued:
    given = {"group": "0", "tag": 0, "dtypes": (torch.float32,), "reduction": "", "place": "a.py:1"} | more
    return Issued(op=op, rank=rank, peer=peer, entry=entry, **given)


def shift(n: int, entries: tuple[int, int], first: str = "send") -> list[list[Issued]]:
    """What ranks ask who send to the right and receive from the left."""
    by_rank = []
    for rank in range(n):
        both = [
            call("send", rank, (rank + 1) % n, entries[0]),
            call("recv", rank, (rank - 1) % n, entries[1]),
        ]
        by_rank.append(both if first == "send" else both[::-1])
    return by_rank


@pytest.mark.parametrize(
    ("issued", "said"),
    [
        (call("all_reduce", reduction="SUM"), []),
        (call("all_reduce", reduction="BXOR"), ["refuses: ReduceOp.BXOR, a.py:1"]),
        (
            call("all_reduce", reduction="AVG", dtypes=(torch.bool,)),
            ["refuses: the average of torch.bool, a.py:1"],
        ),
        (call("broadcast", dtypes=(torch.int16,)), ["refuses: torch.int16, a.py:1"]),
        (call("broadcast", dtypes=(torch.complex64,)), []),
        (call("monitored_barrier"), ["refuses: a monitored barrier, a.py:1"]),
        (call("recv_any_source"), ["refuses: a receive from any rank, a.py:1"]),
    ],
)
def test_what_nccl_has_not(issued: Issued, said: list[str]):
    assert verdict([[issued]]) == said


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_ring_in_single_calls_hangs_and_in_a_batch_moves(n: int):
    assert verdict(shift(n, (1, 2))) == [
        f"hangs: rank {rank} in send to rank {(rank + 1) % n}, a.py:1" for rank in range(n)
    ]
    assert verdict(shift(n, (1, 1))) == []
    assert verdict([shift(n, (1, 2), "recv")[0], *shift(n, (1, 2))[1:]]) == []


def test_groups_have_queues_of_their_own():
    sends = [call("send", 0, 1, 1, group="a"), call("recv", 0, 1, 2, group="b")]
    takes = [call("send", 1, 0, 1, group="b"), call("recv", 1, 0, 2, group="a")]
    assert verdict([sends, takes]) == []
    one_group = [[call(c.op, c.rank, c.peer, c.entry) for c in calls] for calls in (sends, takes)]
    assert len(verdict(one_group)) == 2


def test_tags_that_decide_are_told_from_tags_that_agree_with_the_order():
    sent = [call("send", 0, 1, entry, tag=entry) for entry in (1, 2)]
    same = [call("recv", 1, 0, entry, tag=entry) for entry in (1, 2)]
    swapped = [call("recv", 1, 0, entry, tag=3 - entry) for entry in (1, 2)]
    assert verdict([sent, same]) == ["ignores: the tag, a.py:1"]
    assert "mixes up: what rank 0 sends with tag 1, a.py:1, rank 1 takes for tag 2, a.py:1" in verdict(
        [sent, swapped]
    )


def watched(
    script: Path, folder: Path, ranks: int, code: int = 0, saves_to: tuple[Path, ...] = ()
) -> list[str]:
    done = warm_torchrun(SCRIPTS / "watched_by_nccl.py", script, folder, *saves_to, ranks=ranks)
    assert done.returncode == code, done.stdout
    by_rank = [pickle.loads(path.read_bytes()) for path in sorted(folder.glob("rank_*.pickle"))]
    assert len(by_rank) == ranks
    assert all(by_rank) or "init_process_group" not in script.read_text(encoding="utf-8")
    return verdict(by_rank)


@pytest.mark.slow
@pytest.mark.parametrize("lab", WATCHED, ids=lambda lab: lab.stem)
def test_plain_labs_are_as_nccl_wants_them(lab: Path, tmp_path: Path):
    ranks = int(command_of(lab)[2].removeprefix("--nproc-per-node="))
    saves_to = (tmp_path / "saved",) if "FOLDER" in command_of(lab) else ()
    problems = watched(lab, tmp_path, ranks, exit_code_of(lab), saves_to)
    assert {line.split(":")[0] for line in problems} == KNOWN.get(lab.stem, set()), problems


@pytest.mark.slow
def test_a_plain_lab_that_would_hang_is_found(tmp_path: Path):
    lab = tmp_path / "lab_05_ring.py"
    source = (ROOT / "labs" / "lab_05_ring.py").read_text(encoding="utf-8")
    batch = "dist.batch_isend_irecv([send, receive])"
    single = "[each.op(each.tensor, each.peer, each.group) for each in (send, receive)]"
    assert batch in source
    lab.write_text(source.replace(batch, single), encoding="utf-8")
    assert [line.split(",")[0] for line in watched(lab, tmp_path, 2)] == [
        "hangs: rank 0 in send to rank 1",
        "hangs: rank 1 in send to rank 0",
    ]
