"""What is recorded is what the kernel sees, for everything a group can do; and what a record cannot know."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.comm import record as module
from shared.comm.record import Call, Mark, least_bytes, record
from shared.comm.ring import TrafficError, assert_ring_traffic
from shared.runtime import results
from tests.helpers import SCRIPTS
from tests.launch import warm_torchrun

RANKS = 3
BYTES = 2_400_000
PART = BYTES // RANKS
SEEN = {
    "isend": ("send", BYTES),
    "send": ("send", BYTES),
    "batch_isend_irecv": ("send", BYTES),
    "broadcast": ("broadcast", BYTES),
    "all_reduce": ("all_reduce", BYTES),
    "reduce": ("reduce", BYTES),
    "all_gather": ("all_gather", PART),
    "all_gather_into_tensor": ("all_gather", PART),
    "gather": ("gather", PART),
    "scatter": ("scatter", PART),
    "reduce_scatter": ("reduce_scatter", BYTES),
    "reduce_scatter_tensor": ("reduce_scatter", BYTES),
    "all_to_all_single": ("all_to_all", BYTES),
    "all_to_all": ("all_to_all", BYTES),
    "uneven all_to_all_single": ("all_to_all", BYTES),
    "functional all_reduce": ("all_reduce", BYTES),
}
# gloo sends more than the rule here: it reduces a whole tensor in both halves of a reduce-scatter, and builds
# a reduce of a reduce-scatter and a gather.
GLOO = {"reduce_scatter": 2.0, "reduce_scatter_tensor": 2.0, "reduce": 4 / 3}


def sends(*messages: tuple[int, int]) -> list[Call]:
    return [Call("send", size, size, "0", (0, 1, 2, 3), peer, 0.0) for size, peer in messages]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([(24, 1)] * 5, "messages sent: 5; a ring of 4 sends 6"),
        ([(24, 1)] * 5 + [(24, 2)], "more than one neighbour"),
        ([(96, 1)] * 6, "a message has 96 bytes"),
        ([(20, 1)] * 6, "bytes sent: 120; a ring sends 144"),
    ],
)
def test_what_is_no_ring_is_found(messages: list[tuple[int, int]], told: str):
    with pytest.raises(TrafficError, match=told):
        assert_ring_traffic(sends(*messages), 96, 4)


def test_uneven_chunks_are_a_ring():
    elements = (251, 251, 250, 250, 251, 251)  # of 1,002 numbers on 4 ranks, what rank 1 sends
    assert_ring_traffic(sends(*((8 * count, 2) for count in elements)), 8 * 1002, 4)


def test_every_operation_that_names_a_group_is_known():
    unknown = []
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        names = {argument.name for argument in schema.arguments}
        if namespace == "c10d" and names & module.NAMES_A_GROUP and name not in module.KINDS:
            unknown.append(name)
    assert unknown == []


def test_each_kind_has_a_rule():
    assert all(least_bytes(kind, 12, 4) >= 0 for kind in set(module.KINDS.values()))
    assert least_bytes("all_reduce", 12, 4) == 18
    assert least_bytes("all_gather", 12, 4) == 36


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown: all_redouce"):
        record().of("all_redouce")


def test_marks_and_calls_are_told_apart():
    log = record()
    log.events = [*sends((8, 1)), Mark("gradient 0", 0.0), *sends((4, 2))]
    assert log.order() == ["send", "gradient 0", "send"]
    assert (log.count(), log.bytes("send"), log.counts()) == (2, 12, {"send": 2})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict]]:
    """What each of three ranks found."""
    folder: Path = tmp_path_factory.mktemp("results")
    done = warm_torchrun(SCRIPTS / "record_and_kernel.py", ranks=RANKS, RANK_BY_RANK_RESULTS=str(folder))
    assert done.returncode == 0, done.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK_BY_RANK_RESULTS", str(folder))
        yield results.load_results("record_and_kernel", RANKS)


@pytest.mark.slow
@pytest.mark.parametrize("way", SEEN)
def test_each_call_is_recorded_once_with_its_bytes(way: str, recorded: list[dict]):
    for rank in recorded:
        calls = [call for call in rank[way]["calls"] if call[0] != "recv"]
        assert [tuple(call[:2]) for call in calls] == [SEEN[way]]
        assert calls[0][2] == list(range(RANKS))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO of this form is Linux's")
@pytest.mark.parametrize("way", [*SEEN, "barrier"])
def test_the_record_and_the_kernel_agree(way: str, recorded: list[dict]):
    by_rule = sum(rank[way]["by_rule"] for rank in recorded)
    kernel = sum(rank[way]["kernel"] for rank in recorded)
    assert kernel == pytest.approx(GLOO.get(way, 1.0) * by_rule, rel=0.02, abs=8192)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO of this form is Linux's")
def test_the_two_can_disagree(recorded: list[dict]):
    """Without its factor gloo's reduce-scatter contradicts the rule, so the comparison above is one."""
    by_rule = sum(rank["reduce_scatter"]["by_rule"] for rank in recorded)
    assert sum(rank["reduce_scatter"]["kernel"] for rank in recorded) > 1.9 * by_rule


@pytest.mark.slow
@pytest.mark.parametrize(("way", "peers"), [("isend", [1, 2, 0]), ("batch_isend_irecv", [1, 2, 0])])
def test_a_message_names_its_destination(way: str, peers: list[int], recorded: list[dict]):
    destinations = [[peer for op, _, _, peer in rank[way]["calls"] if op == "send"] for rank in recorded]
    assert destinations == [[peer] for peer in peers]


@pytest.mark.slow
def test_ranks_are_those_of_the_world_in_a_smaller_group(recorded: list[dict]):
    call = ["broadcast", 20, [0, 2], 2]
    assert [rank["of a pair"] for rank in recorded] == [[call], [], [call]]


@pytest.mark.slow
def test_what_begins_in_cpp_is_seen(recorded: list[dict]):
    hooks = recorded[0]["hooks"]
    assert [call[:2] for call in hooks["DDP"]] == [["all_reduce", 352]]
    assert not [call for call in hooks["DDP, no_sync"] if call[0] == "all_reduce"]
    assert [call[:2] for call in hooks["FSDP"]] == [["all_gather", 32], ["reduce_scatter", 96]]


@pytest.mark.slow
def test_what_a_dtensor_does_within_an_operation_is_seen(recorded: list[dict]):
    assert [call[:2] for call in recorded[0]["hooks"]["DTensor"]] == [["all_reduce", 20]]


@pytest.mark.slow
def test_object_collectives_are_what_they_are_made_of(recorded: list[dict]):
    assert recorded[0]["object"] == ["all_gather", "all_gather"]  # lengths, then texts


@pytest.mark.slow
def test_the_order_of_calls_and_marks_is_kept_and_ends_with_the_context(recorded: list[dict]):
    assert {tuple(rank["marks"]) for rank in recorded} == {("first", "all_reduce", "second", "barrier")}


@pytest.mark.slow
def test_every_rank_learns_who_differs(recorded: list[dict]):
    assert {rank["differing"] for rank in recorded} == {"planted other: ranks [2] differ from rank 0"}
