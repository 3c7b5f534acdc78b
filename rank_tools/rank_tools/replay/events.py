"""What the ranks of a job did, read from their files and put into an order of causes.

Each event gets a row: after the event before it in its thread, and after its causes. The end of a collective
comes after each of the calls that it needs, a receive after its send. Seconds decide nothing, so two runs
that do the same have the same rows.
"""

import json
import linecache
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SENDS = ("send", "isend")
RECEIVES = ("recv_", "recv_any_source_", "irecv")
NOTES = {
    "limit": "rank {rank}: the recording ends after {what:,} events; the job went on",
    "tracer": "rank {rank}: {what} has taken over the tracer; what came after it is not seen",
    "bye": "rank {rank} failed: {what}",
}
DEFINITIONS = ("import ", "from ", "def ", "class ", "@", '"""', "async def ")
FROM_ROOT = ("broadcast_", "broadcast", "scatter_")
TO_ROOT = ("reduce_", "gather_", "gather_into_tensor_")
# {operation of torch's dispatcher: what the page calls it}; others lose what stands around their name
NAMES = {
    "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "allreduce_": "all_reduce",
    "allgather_": "all_gather",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "recv_any_source_": "recv",
    "isend": "send",
    "irecv": "recv",
}


@dataclass
class Event:
    """One line, call, wait, end or print of one thread of a rank."""

    kind: str
    seconds: float
    data: list
    lane: int
    row: int = 0


@dataclass
class Call:
    """What one rank asked of a group.

    Attributes:
        position: its number among the collectives of its group on this rank, or among the messages of this
            sender, receiver and tag.
        begun, waited, ended: the events; None for what was not seen.
    """

    rank: int
    number: int
    operation: str
    group: str
    members: tuple[int, ...]
    peer: int | None
    tag: int
    bytes: int
    shapes: list[str]
    before: list[str]
    begun: Event
    position: int = 0
    after: list[str] = field(default_factory=list)
    waited: Event | None = None
    ended: Event | None = None

    @property
    def name(self) -> str:
        return NAMES.get(self.operation, self.operation.strip("_"))

    @property
    def is_message(self) -> bool:
        return self.operation in SENDS + RECEIVES

    @property
    def key(self) -> tuple:
        """What is the same for all the calls that belong together."""
        if self.operation in SENDS:
            return ("message", self.group, self.rank, self.peer, self.tag)
        if self.operation in RECEIVES:
            return ("message", self.group, self.peer, self.rank, self.tag)
        return ("collective", self.group)


@dataclass
class Lane:
    """One thread of a rank."""

    rank: int
    thread: int
    events: list[Event] = field(default_factory=list)


@dataclass
class Process:
    """What one process wrote."""

    rank: int | None
    began: float
    events: list[list]


@dataclass
class Replay:
    """A job.

    Attributes:
        files: the paths of the script's files, in the order in which rank 0 came to them.
        together: the calls that belong together, in the order of their first rows.
        notes: what a reader of the page has to know.
    """

    files: list[str]
    lanes: list[Lane]
    calls: list[Call]
    together: list[list[Call]]
    notes: list[str]
    waits: dict[int, str] = field(default_factory=dict)


def read(folder: Path) -> Replay:
    """Raises: ValueError if no rank has written anything."""
    processes = [process for path in folder.glob("events-*.jsonl") if (process := read_process(path)).events]
    newest: dict[int, Process] = {}
    earlier = 0
    for process in sorted(processes, key=lambda process: process.began):
        if process.rank is not None:
            earlier += process.rank in newest
            newest[process.rank] = process
    if not newest:
        raise ValueError("no rank ran a line of a script")
    notes = [f"{earlier} earlier attempts of ranks are left out"] if earlier else []
    replay = Replay([], [], [], [], notes)
    for rank in sorted(newest):
        reader = RankReader(replay, rank)
        for event in newest[rank].events:
            reader.take(*event)
    if not replay.lanes:
        raise ValueError("no rank ran a line of a script")
    replay.together = match(replay.calls)
    put_in_order(replay)
    replay.together.sort(key=lambda calls: min((call.begun.row, call.rank) for call in calls))
    return replay


def read_process(path: Path) -> Process:
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break  # the process was killed while it wrote
    rank = None
    for event in events:
        if event[0] in ("hello", "rank"):
            rank = event[3]
    return Process(rank, events[0][1] if events else 0.0, events)


class RankReader:
    """Puts what one rank wrote into the replay."""

    def __init__(self, replay: Replay, rank: int) -> None:
        self.replay = replay
        self.rank = rank
        self.lanes: dict[int, int] = {}
        self.files: dict[int, int] = {}
        self.calls: dict[int, Call] = {}
        self.counts: dict[tuple, int] = defaultdict(int)

    def take(self, kind: str, seconds: float, thread: int, *data: Any) -> None:
        if kind == "file":
            self.take_file(*data)
        elif kind in NOTES and data[0]:
            self.replay.notes.append(NOTES[kind].format(rank=self.rank, what=data[0]))
        elif kind == "line":
            _, file, number, function, _ = data
            path = self.replay.files[self.files[file]]
            if function != "<module>" or not is_definition(path, number):
                self.add(kind, seconds, thread, [data[0], self.files[file], *data[2:]])
        elif kind == "print":
            self.add(kind, seconds, thread, list(data))
        elif kind == "call":
            self.take_call(self.add(kind, seconds, thread, list(data)), list(data))
        elif kind in ("wait", "end") and data[0] in self.calls:
            event = self.add(kind, seconds, thread, list(data))
            call = self.calls[data[0]]
            if kind == "wait":
                call.waited = event
            else:
                call.ended, call.after = event, data[1]

    def add(self, kind: str, seconds: float, thread: int, data: list) -> Event:
        if thread not in self.lanes:
            self.lanes[thread] = len(self.replay.lanes)
            self.replay.lanes.append(Lane(self.rank, thread))
        event = Event(kind, seconds, data, self.lanes[thread])
        self.replay.lanes[event.lane].events.append(event)
        return event

    def take_file(self, number: int, path: str) -> None:
        if path not in self.replay.files:
            self.replay.files.append(path)
        self.files[number] = self.replay.files.index(path)

    def take_call(self, begun: Event, data: list) -> None:
        number, operation, group, members, peer, tag, size, shapes, before = data
        call = Call(
            self.rank, number, operation, group, tuple(members), peer, tag, size, shapes, before, begun
        )
        call.position = self.counts[call.key]
        self.counts[call.key] += 1
        self.calls[number] = call
        self.replay.calls.append(call)


def is_definition(path: str, number: int) -> bool:
    """Whether a line of a module only imports or defines something: the page leaves it out."""
    return linecache.getline(path, number).lstrip().startswith(DEFINITIONS)


def match(calls: Iterable[Call]) -> list[list[Call]]:
    """The calls that belong together: the k-th collective of a group, the k-th message of a sender."""
    sets: dict[tuple, list[Call]] = defaultdict(list)
    for call in calls:
        sets[(*call.key, call.position)].append(call)
    return list(sets.values())


def causes_of_ends(together: list[list[Call]]) -> dict[int, list[Event | None]]:
    """{id of an end: the calls that come before it}. None stands for a call that was never made."""
    causes: dict[int, list[Event | None]] = {}
    for calls in together:
        begun: dict[int, Event] = {call.rank: call.begun for call in calls}
        for call in calls:
            if call.ended is not None:
                causes[id(call.ended)] = [begun.get(rank) for rank in needed(call)]
    return causes


def needed(call: Call) -> list[int]:
    """The ranks without whose call this one cannot end."""
    if call.operation in SENDS:
        return []
    if call.operation in RECEIVES:
        return [] if call.peer is None else [call.peer]
    if call.operation in FROM_ROOT and call.peer is not None:
        return [call.peer]
    if call.operation in TO_ROOT and call.peer is not None and call.rank != call.peer:
        return []
    return list(call.members)


def put_in_order(replay: Replay) -> None:
    """Give each event its row."""
    causes = causes_of_ends(replay.together)
    position = [0] * len(replay.lanes)
    last = [0] * len(replay.lanes)
    done: set[int] = set()
    forced = False
    while True:
        moved = False
        for number, lane in enumerate(replay.lanes):
            while position[number] < len(lane.events):
                event = lane.events[position[number]]
                before = [cause for cause in causes.get(id(event), []) if cause is not None]
                if not forced and any(id(cause) not in done for cause in before):
                    break
                forced = False
                event.row = 1 + max([last[number], *(cause.row for cause in before)])
                last[number] = event.row
                done.add(id(event))
                position[number] += 1
                moved = True
        if all(at == len(lane.events) for at, lane in zip(position, replay.lanes, strict=True)):
            return
        forced = not moved  # calls that were matched wrongly must not stop the page


def say_who_waits(replay: Replay) -> None:
    """For a job that hung: in which call each rank waits, for whom, and where the ranks parted."""
    waiting = {}
    for calls in replay.together:
        by_rank = {call.rank: call for call in calls}
        for call in calls:
            if is_open(call, replay):
                missing = [rank for rank in partners(call) if rank not in by_rank]
                for_whom = (
                    f"for rank{'s' * (len(missing) > 1)} {listed(missing)}" if missing else "for its end"
                )
                waiting[call.rank] = f"waits in {described(call)}, {for_whom}"
    for rank in sorted({lane.rank for lane in replay.lanes}):
        replay.waits[rank] = waiting.get(rank, "waits in no call of a group")
    replay.notes += [f"rank {rank} {text}" for rank, text in replay.waits.items()]
    parted = where_parted(replay)
    if parted:
        replay.notes.append(parted)


def described(call: Call) -> str:
    if call.is_message:
        way = "to" if call.operation in SENDS else "from"
        return f"{call.name} {way} rank {call.peer}, number {call.position + 1}"
    return f"{call.name}, collective {call.position + 1} of its group"


def partners(call: Call) -> list[int]:
    if call.is_message:
        return [] if call.peer is None else [call.peer]
    return list(call.members)


def is_open(call: Call, replay: Replay) -> bool:
    """Whether its thread did nothing after it: it waits there."""
    events = replay.lanes[call.begun.lane].events
    return call.ended is None and events[-1] in (call.begun, call.waited)


def where_parted(replay: Replay) -> str:
    """The first collective of a group that is not the same on all ranks."""
    for calls in replay.together:
        if calls[0].is_message:
            continue
        kinds = {
            call.rank: f"{call.name} of {call.shapes[0] if call.shapes else 'nothing'}" for call in calls
        }
        if len(set(kinds.values())) > 1 and len({call.name for call in calls}) > 1:
            told = "; ".join(f"rank {rank}: {kind}" for rank, kind in sorted(kinds.items()))
            return f"the ranks part at collective {calls[0].position + 1} of their group: {told}"
        missing = sorted(set(calls[0].members) - kinds.keys())
        if missing:
            there = listed(sorted(kinds))
            return (
                f"the ranks part at collective {calls[0].position + 1} of their group: {calls[0].name} "
                f"is called by rank {there}, not by rank {listed(missing)}"
            )
    return ""


def listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
