"""What nccl would say to the calls that a script makes over gloo. Taught in lesson 03.

    with watch_for_nccl() as watched:
        exchange()
    by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, watched.issued)
    for line in verdict(by_rank):
        print(line)

The rules are those of torch 2.15, where backend ``nccl`` is torch/csrc/distributed/c10d/nccl2: ``send`` and
``recv`` of ProcessGroupNCCLBackend.cpp leave their tag unread and queue up in one stream for each group, a
batch as one entry; ``getNcclReduceOp`` and ``getNcclDataType`` of ProcessGroupNCCLUtils.cpp refuse reductions
and types; a receive from any rank and a monitored barrier are not there. On an H200 (torch 2.11) the
replay of lesson 03's cures held; the rest has not run on GPUs.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from shared.comm.record import Call, CommRecord

TYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8}
TYPES |= {torch.uint8, torch.bool, torch.float8_e5m2, torch.float8_e4m3fn}
COMPLEX = {torch.complex64, torch.complex128}  # seen as real numbers in collectives, not in messages
REDUCTIONS = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM"}
MESSAGES = ("send", "recv")
NOT_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


@dataclass(frozen=True)
class Issued:
    """One call of one rank.

    Attributes:
        op: its kind, such as ``send``; the name in torch's dispatcher where that says more.
        group: name of the process group.
        rank, peer: ranks of the world; ``peer`` is None where there is none, or any.
        tag: of a message, else 0.
        dtypes: of the tensors.
        reduction: such as ``SUM``; empty where nothing is reduced.
        entry: number of its entry in this rank's queue; the calls of one batch share it.
        place: file and line of the script.
    """

    op: str
    group: str
    rank: int
    peer: int | None
    tag: int
    dtypes: tuple[torch.dtype, ...]
    reduction: str
    entry: int
    place: str


class NcclWatch(CommRecord):
    """A record that keeps what nccl would look at: tags, types, reductions, batches and places."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[Issued] = []
        self._given: tuple = ()
        self._in_batch = False
        self._entry = 0
        self._batches = patch.object(dist, "batch_isend_irecv", partial(self._batch, dist.batch_isend_irecv))

    def __enter__(self) -> "NcclWatch":
        self._batches.start()
        return super().__enter__()

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        self._batches.stop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._given = (func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)

    def note(self, call: Call) -> None:
        super().note(call)
        func, args, kwargs = self._given
        given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
        if not self._in_batch:
            self._entry += 1
        tensors = [leaf for leaf in tree_leaves([args, kwargs]) if torch.is_tensor(leaf)]
        special = func._opname in ("recv_any_source_", "monitored_barrier_")
        self.issued.append(
            Issued(
                func._opname.rstrip("_") if special else call.op,
                call.group,
                dist.get_rank(),
                call.peer,
                given.get("tag", 0),
                tuple(dict.fromkeys(tensor.dtype for tensor in tensors)),
                reduction_of(given.get("reduce_op")),
                self._entry,
                place_of_script(),
            )
        )

    def _batch(self, batch_isend_irecv, operations: list) -> list:
        self._entry += 1
        self._in_batch = True
        try:
            return batch_isend_irecv(operations)
        finally:
            self._in_batch = False


def watch_for_nccl() -> NcclWatch:
    """``with watch_for_nccl() as watched:`` keeps this rank's calls in ``watched.issued``."""
    return NcclWatch()


def reduction_of(given: object) -> str:
    """``SUM`` of a string (functional collectives), of a ``ReduceOp``, or of its boxed form; else empty."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given.upper()
    unboxed = dist.ReduceOp.unbox(given) if isinstance(given, torch.ScriptObject) else given
    return str(unboxed.op if hasattr(unboxed, "op") else unboxed).rsplit(".", 1)[-1]


def place_of_script() -> str:
    """``lab.py:12``: the innermost frame that is neither torch's nor one of this package's instruments."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*NOT_OURS, "<")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def verdict(by_rank: Sequence[Sequence[Issued]]) -> list[str]:
    """What nccl would refuse, ignore, and wait for without end; each place once. Empty: nothing is known."""
    calls = [call for calls in by_rank for call in calls]
    lines = [line for call in calls for line in [*refused(call), *ignored(call)]]
    return [*dict.fromkeys(lines), *stuck(by_rank)]


def refused(call: Issued) -> list[str]:
    """What nccl has not."""
    if call.op == "recv_any_source":
        return [f"refuses: a receive from any rank, {call.place}"]
    if call.op == "monitored_barrier":
        return [f"refuses: a monitored barrier, {call.place}"]
    refusals = []
    if call.reduction and call.reduction not in REDUCTIONS:
        refusals.append(f"refuses: ReduceOp.{call.reduction}, {call.place}")
    known = TYPES if call.op in MESSAGES else TYPES | COMPLEX
    for dtype in call.dtypes:
        if dtype not in known:
            refusals.append(f"refuses: {dtype}, {call.place}")
        elif dtype == torch.bool and call.reduction == "AVG":
            refusals.append(f"refuses: the average of {dtype}, {call.place}")
    return refusals


def ignored(call: Issued) -> list[str]:
    """What nccl does not read."""
    return [f"ignores: the tag, {call.place}"] if call.tag else []


def stuck(by_rank: Sequence[Sequence[Issued]]) -> list[str]:
    """Replay the messages of each group with one queue for each rank; name what can never move.

    A message moves when sender and receiver have both come to the entry that holds it, and an entry is
    done when all its messages have moved. nccl may hold a small message and let its sender go on, so a
    script that is stuck here may run with few numbers and hang with many. Collectives are not replayed.
    """
    queues: dict[str, dict[int, list[list[Issued]]]] = defaultdict(lambda: defaultdict(list))
    for calls in by_rank:
        for call in calls:
            if call.op not in MESSAGES:
                continue
            queue = queues[call.group][call.rank]
            if queue and queue[-1][0].entry == call.entry:
                queue[-1].append(call)
            else:
                queue.append([call])
    problems: list[str] = []
    for waiting in queues.values():
        while pair := next_pair(waiting):
            sent, received = pair
            take(waiting[sent.rank], sent)
            take(waiting[received.rank], received)
            if sent.tag != received.tag:
                problems.append(
                    f"mixes up: what rank {sent.rank} sends with tag {sent.tag}, {sent.place}, "
                    f"rank {received.rank} takes for tag {received.tag}, {received.place}"
                )
        for rank, queue in sorted(waiting.items()):
            if queue:
                call = queue[0][0]
                there = f"to rank {call.peer}" if call.op == "send" else f"from rank {call.peer}"
                problems.append(f"hangs: rank {rank} in {call.op} {there}, {call.place}")
    return problems


def next_pair(waiting: dict[int, list[list[Issued]]]) -> tuple[Issued, Issued] | None:
    """A message whose two ends have both come to it: its ``send`` and its ``recv``."""
    for rank, queue in waiting.items():
        for sent in queue[0] if queue else []:
            if sent.op != "send" or sent.peer is None or not waiting.get(sent.peer):
                continue
            for received in waiting[sent.peer][0]:
                if received.op == "recv" and received.peer == rank:
                    return sent, received
    return None


def take(queue: list[list[Issued]], call: Issued) -> None:
    queue[0].remove(call)
    if not queue[0]:
        queue.pop(0)
