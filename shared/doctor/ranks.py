"""Ranks, as what their processes say makes them up."""

import re
from dataclasses import dataclass, field
from pathlib import Path

BUSY = 0.03  # a rank that uses more than this share of a processor computes
# Functions of torch in which a rank may wait without a call of the flight recorder; outermost first.
WAITS_IN = {
    "init_process_group": "init_process_group",
    "new_group": "new_group",
    "monitored_barrier": "monitored_barrier",
    "init_rpc": "init_rpc",
    "shutdown": "rpc.shutdown",
    "rpc_sync": "rpc_sync",
    "_wait_all": "rpc.wait_all",
    "_store_based_barrier": "a barrier of the store",
}
# Beginnings of what a rank's own line calls, and what it is then said to wait in.
MESSAGE = re.compile(r"(?P<kind>send|recv) \d+(->|<-)(?P<peer>\d+)")
WAITS_AT = ("store.get(", "store.wait(", "store.barrier(", ".wait()")


@dataclass(frozen=True)
class Place:
    """A line of code."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        inside = "" if self.function == "<module>" else f", in {self.function}"
        text = f": {self.text}" if self.text else ""
        return f"{Path(self.file).name}:{self.line}{inside}{text}"


@dataclass(frozen=True)
class Call:
    """A call that the flight recorder has noted. ``number`` counts the calls of its group."""

    id: int
    group: str
    group_name: str
    number: int
    is_p2p: bool
    kind: str
    shape: str
    done: bool
    place: Place | None


@dataclass
class Rank:
    """One rank. ``place``: the innermost line of the reader's own code that its main thread is in."""

    rank: int
    pid: int
    world_size: int
    state: str  # alive, silent, stopped, ended, failed or gone
    place: Place | None = None
    waits_in: str = ""  # a function of torch, if the main thread is in one that waits
    message: tuple[str, int | None] | None = None  # (send or recv, the other rank), if it waits in one
    stack: list = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    knows_calls: bool = True  # False: py-spy has seen its stack, and nothing else is known
    groups: dict[str, list[int]] = field(default_factory=dict)
    cpu_s: float = 0.0
    busy: bool = False
    error: str = ""
    problem: str = ""

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.calls if not call.done]

    def progress(self) -> tuple:
        """What changes when the rank makes a call, or when one of its calls is done."""
        done = sum(call.done for call in self.calls)
        newest = self.calls[-1].id if self.calls else -1
        return self.pid, self.state, newest, done, self.waits_in


def ranks_of(answers: list[dict]) -> dict[int, Rank]:
    """{rank: Rank}. Of several processes that claim a rank, such as loaders' workers, the topmost one."""
    claims: dict[int, list[dict]] = {}
    for said in answers:
        number = number_of(said)
        if number is not None:
            claims.setdefault(number, []).append(said)
    return {number: make_rank(number, topmost(claims[number])) for number in sorted(claims)}


def number_of(said: dict) -> int | None:
    if said.get("rank") is not None:
        return said["rank"]
    text = said["variables"].get("RANK", "")
    return int(text) if text.isdigit() else None


def topmost(claims: list[dict]) -> dict:
    """The process that is the rank: one with a group, if there is any, and with none of them above it."""
    with_group = [said for said in claims if said.get("rank") is not None]
    candidates = with_group or claims
    pids = {said["pid"] for said in candidates}
    top = [said for said in candidates if said["parent"] not in pids]
    alive = [said for said in top if said["alive"]]
    newest_first = sorted(alive or top, key=lambda said: -said["time"])
    return newest_first[0]


def make_rank(number: int, said: dict) -> Rank:
    world_size = said.get("world_size") or int(said["variables"].get("WORLD_SIZE", 0) or 0)
    rank = Rank(number, said["pid"], world_size, state_of(said), cpu_s=said.get("cpu_s", 0.0))
    rank.problem = said.get("problem", "")
    stacks = said.get("stacks", {})
    if stacks:
        rank.stack = next(iter(stacks.values()))
        rank.place = own_place(rank.stack)
        rank.knows_calls = said.get("knows_calls", True)
        rank.waits_in = waiting_function(rank.stack, rank.place)
        if not rank.knows_calls and not rank.waits_in:
            rank.waits_in = collective_in(rank.stack)
    bye = said["bye"]
    if bye and not said["alive"]:
        rank.error = bye["error"]
        rank.place = own_place(bye["place"])
    rank.calls = [make_call(one) for one in said.get("calls", [])]
    rank.groups = said.get("groups", {})
    rank.message = message_of(said, rank)
    if rank.message is not None:
        kind, peer = rank.message
        other = "any rank" if peer is None else f"rank {peer}"
        rank.waits_in = f"{kind} {'to' if kind == 'send' else 'from'} {other}"
    return rank


def message_of(said: dict, rank: Rank) -> tuple[str, int | None] | None:
    """From the stack, or from a recorder that notes messages: ``nccl:send 0->1``, ``nccl:recv 1<-0``."""
    if said.get("message"):
        kind, peer = said["message"]
        return kind, peer
    for call in rank.open_calls:
        match = MESSAGE.match(call.kind)
        if call.is_p2p and match:
            return match["kind"], int(match["peer"])
    return None


def state_of(said: dict) -> str:
    if not said["alive"]:
        if said["bye"] is None:
            return "gone"
        return "failed" if said["bye"]["error"] else "ended"
    if said["stopped"]:
        return "stopped"
    return "alive" if said["answered"] else "silent"


def own_place(stack: list) -> Place | None:
    """The innermost line of the reader's own code; without any, the innermost line."""
    own = [frame for frame in stack if frame[4]] or stack
    if not own:
        return None
    file, line, function, text, _ = own[-1]
    return Place(file, line, function, text)


def waiting_function(stack: list, place: Place | None) -> str:
    for _, _, function, _, is_own in stack:
        if function in WAITS_IN and not is_own:
            return WAITS_IN[function]
    if place is not None:
        for text in WAITS_AT:
            if text in place.text:
                return text.rstrip("(").lstrip(".")
    return ""


def collective_in(stack: list) -> str:
    """The function of ``torch.distributed`` that a stack is in. A backward of DDP is not seen in it."""
    for file, _, function, _, _ in stack:
        if file.endswith("torch/distributed/distributed_c10d.py") and not function.startswith("_"):
            return function
    return ""


def make_call(one: dict) -> Call:
    place = Place(one["place"][0], one["place"][1], one["place"][2], "") if one["place"] else None
    kind = one["kind"].partition(":")[2] or one["kind"]  # gloo:all_reduce
    return Call(
        id=one["id"],
        group=one["group"],
        group_name=one["group_name"],
        number=one["number"],
        is_p2p=one["is_p2p"],
        kind=kind,
        shape=shape_of(kind, one),
        done=one["done"],
        place=place,
    )


def shape_of(kind: str, one: dict) -> str:
    """What must be equal on all ranks, such as ``Float[4]``; empty where ranks may differ."""
    if "barrier" in kind or "all_to_all" in kind or "alltoall" in kind or one["is_p2p"]:
        return ""
    takes_outputs = "scatter" in kind
    sizes = one["outputs"] if takes_outputs else one["inputs"]
    types = one["output_types"] if takes_outputs else one["input_types"]
    if not types:
        types = [""] * len(sizes)
    return ", ".join(f"{dtype}{list(size)}" for dtype, size in zip(types, sizes, strict=False))


def mark_busy(ranks: dict[int, Rank], before: dict[int, Rank], seconds: float) -> None:
    """Say of each rank whether it has computed since ``before``."""
    for number, rank in ranks.items():
        if number in before and before[number].pid == rank.pid:
            rank.busy = rank.cpu_s - before[number].cpu_s > BUSY * seconds
