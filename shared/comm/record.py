"""What this rank asks of its process groups, call by call. Taught in lessons 05 and 06.

torch sends every collective through its dispatcher: ours, those of ``torch.distributed``'s object functions,
and those that DDP or FSDP begin in C++. A dispatch mode sees them all. It sees what was asked for, not what
went out: ``shared.comm.kernel`` counts that, and a test holds the two against each other.
"""

import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# {operation of torch's dispatcher: name of the kind}. The first group is what torch.distributed's functions
# call, the second what DTensor, FSDP and compiled code call.
KINDS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "gather_into_tensor_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
} | {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "isend": "send",
    "irecv": "recv",
}
NAMESPACES = ("c10d", "_c10d_functional")
NAMES_A_GROUP = {"process_group", "group_name"}
INPUTS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor")
PEERS = ("root_rank", "dst", "src")


@dataclass(frozen=True)
class Call:
    """One operation of a process group, as this rank asked for it.

    Attributes:
        op: its kind, such as ``all_reduce``; ``all_gather_into_tensor`` is an ``all_gather``.
        bytes: what this rank hands in; where it only receives, what it gets; 0 for a barrier.
        by_rule: bytes that each rank has to send on average, in the way that sends least.
        group: name of the process group.
        ranks: its members, as ranks of the world.
        peer: source, destination or root, as a rank of the world; None where there is none.
        at: seconds of ``time.perf_counter`` at which it was launched.
    """

    op: str
    bytes: int
    by_rule: float
    group: str
    ranks: tuple[int, ...]
    peer: int | None
    at: float


@dataclass(frozen=True)
class Mark:
    """Something else that happened between calls, noted by ``CommRecord.mark``."""

    what: str
    at: float


class CommRecord(TorchDispatchMode):
    """All communication that this thread begins while the context is open, and its backward passes.

        with record() as log:
            ddp(x).sum().backward()
        log.counts()                 # Counter({"all_reduce": 2})
        log.bytes("all_reduce")      # bytes handed to it

    An object collective such as ``all_gather_object`` shows as the collectives that it is made of. RPC does
    not go through process groups and is not seen, nor is what another thread of this process sends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Call | Mark] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Have torch leave ``__torch_dispatch__`` as it is: to shield it, torch would import its compiler."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(_is_dtensor(kind) for kind in types):
            return (
                NotImplemented  # DTensor takes it apart, and this mode sees the collectives among the parts
            )
        if func.namespace in NAMESPACES and not NAMES_A_GROUP.isdisjoint(_parameters(func)):
            self.note(_call(func, args, kwargs))
        return func(*args, **kwargs)

    def note(self, call: Call) -> None:
        """Add ``call``, which is about to be launched. A subclass may look at it first."""
        self.events.append(call)

    def mark(self, what: str) -> None:
        """Note that something happened now, between the calls before and those after."""
        self.events.append(Mark(what, time.perf_counter()))

    @property
    def calls(self) -> list[Call]:
        """All calls, in the order in which they were launched."""
        return [event for event in self.events if isinstance(event, Call)]

    def of(self, *ops: str) -> list[Call]:
        """The calls of these kinds, in order; without a name, all.

        Raises:
            ValueError: there is no such kind, so nothing could ever be found.
        """
        unknown = set(ops) - set(KINDS.values())
        if unknown:
            raise ValueError(
                f"unknown: {', '.join(sorted(unknown))}; there are {sorted(set(KINDS.values()))}"
            )
        return [call for call in self.calls if not ops or call.op in ops]

    def count(self, *ops: str) -> int:
        """How many calls of these kinds."""
        return len(self.of(*ops))

    def counts(self) -> Counter[str]:
        """{kind: number of calls}, only of kinds that were called."""
        return Counter(call.op for call in self.calls)

    def bytes(self, *ops: str) -> int:
        """Bytes that this rank handed to calls of these kinds."""
        return sum(call.bytes for call in self.of(*ops))

    def by_rule(self, *ops: str) -> float:
        """Bytes that this rank has to send for calls of these kinds, in the way that sends least."""
        return sum(call.by_rule for call in self.of(*ops))

    def order(self) -> list[str]:
        """Kinds of calls and texts of marks, in the order in which they happened."""
        return [event.op if isinstance(event, Call) else event.what for event in self.events]


def record() -> CommRecord:
    """``with record() as log:`` notes all that this rank asks of its process groups."""
    return CommRecord()


def least_bytes(op: str, size: int, ranks: int) -> float:
    """Bytes that each of ``ranks`` ranks sends on average for an operation, in the way that sends least.

    Args:
        op: a kind, such as ``all_reduce``.
        size: bytes that a rank hands in: the whole tensor, for ``all_gather`` and ``gather`` its own part,
            for ``scatter`` the part that a rank gets.

    Source: Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521, and lesson 05.
    """
    others = ranks - 1
    factors = {
        "all_reduce": 2 * others / ranks,
        "all_gather": others,
        "reduce_scatter": others / ranks,
        "all_to_all": others / ranks,
        "broadcast": others / ranks,
        "reduce": others / ranks,
        "gather": others / ranks,
        "scatter": others / ranks,
        "send": 1,
        "recv": 0,
        "barrier": 0,
    }
    return factors[op] * size


def _is_dtensor(kind: type) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # imported only here and there: that takes a second
    return module is not None and issubclass(kind, module.DTensor)


def _parameters(func) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


def _call(func, args: tuple, kwargs: dict[str, Any]) -> Call:
    at = time.perf_counter()
    if func._opname not in KINDS:
        raise NotImplementedError(f"{func} communicates, but this record does not know it")
    op = KINDS[func._opname]
    given = dict(zip(_parameters(func), args, strict=False)) | kwargs
    group = _group_of(given)
    ranks = tuple(dist.get_process_group_ranks(group))
    size = _handed_in(op, given)
    by_rule = least_bytes(op, size, len(ranks))
    if op == "all_to_all":
        by_rule = size - _own_part(given, ranks.index(dist.get_rank()))
    peer = next((given[name] for name in PEERS if name in given), None)
    if peer is not None and "group_name" not in given:
        peer = ranks[peer]  # inside the dispatcher it is a rank of the group
    return Call(op, size, by_rule, group.group_name, ranks, peer, at)


def _handed_in(op: str, given: dict[str, Any]) -> int:
    if op == "barrier":
        return 0
    if op == "scatter":
        return _bytes_of(given["output_tensors"])
    return _bytes_of(_inputs(given))


def _inputs(given: dict[str, Any]) -> Any:
    return next(given[name] for name in INPUTS if name in given)


def _own_part(given: dict[str, Any], position: int) -> float:
    """Bytes of an all-to-all that this rank, the group's member number ``position``, sends to itself."""
    inputs = _inputs(given)
    if isinstance(inputs, (list, tuple)):
        return _bytes_of(inputs[position])
    splits = given.get("input_split_sizes")
    if not splits:
        return _bytes_of(inputs) / dist.get_world_size(_group_of(given))
    return _bytes_of(inputs) * splits[position] / max(1, sum(splits))


def _bytes_of(tensors: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(tensors) if torch.is_tensor(leaf))


def _group_of(given: dict[str, Any]) -> dist.ProcessGroup:
    if "process_group" in given:
        return dist.ProcessGroup.unbox(given["process_group"])
    return dist.distributed_c10d._resolve_process_group(given["group_name"])
