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

VERDICTS = "verdicts.json"
SENDS = ("send", "isend")
RECEIVES = ("recv_", "recv_any_source_", "irecv")
NOTES = {
    "limit": "rank {rank}: the recording ends after {what:,} events; the job went on",
    "tracer": "rank {rank}: {what} has taken over the tracer; what came after it is not seen",
    "bye": "rank {rank} failed: {what}",
}
SLOTS = 6  # beside each other
MOST_IN_SPAN = 16  # collectives of a line; more are a whole training
DEFINITIONS = ("import ", "from ", "def ", "class ", "@", '"""', "async def ")
FROM_ROOT = ("broadcast_", "broadcast", "scatter_")
TO_ROOT = ("reduce_", "gather_", "gather_into_tensor_")
EQUAL = ("all_reduce", "reduce", "broadcast")  # all ranks hand in the same shape and type
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

    @property
    def last_case(self) -> list | None:
        """[number, function, number of its call]; None if all that it does is recorded."""
        return next((event[3:] for event in reversed(self.events) if event[0] == "case"), None)

    def keep(self, function: str, call: int) -> None:
        """Forget all but this case."""
        is_in = False
        kept = []
        for event in self.events:
            if event[0] == "case":
                is_in = event[4:] == [function, call]
            if is_in or event[0] == "file":
                kept.append(event)
        self.events = kept


@dataclass
class Replay:
    """A job.

    Attributes:
        files: the paths of the script's files, in the order in which rank 0 came to them.
        together: the calls that belong together, in the order of their first rows.
        notes: what a reader of the page has to know.
        waits: {rank: for whom it waits, or where it stands}, of a job that hung.
        parted: the calls with which its ranks parted.
    """

    files: list[str]
    lanes: list[Lane]
    calls: list[Call]
    together: list[list[Call]]
    notes: list[str]
    waits: dict[int, str] = field(default_factory=dict)
    parted: list[Call] = field(default_factory=list)


@dataclass
class Span:
    """A line during which its rank began several collectives, such as a backward of DDP."""

    rank: int
    function: str
    line: int
    source: str
    begin: int
    end: int
    calls: list[Call]


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
        ran = any(event[0] == "line" for process in processes for event in process.events)
        raise ValueError(f"no rank ran {'a line after init_process_group' if ran else 'a line of a script'}")
    notes = [f"{earlier} earlier attempts of ranks are left out"] if earlier else []
    if any(process.last_case for process in newest.values()):
        notes = keep_failing_case(folder, newest)
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


def keep_failing_case(folder: Path, processes: dict[int, Process]) -> list[str]:
    """Forget all but the case after which the check of an exercise found a fault. Returns its verdicts."""
    path = folder / VERDICTS
    verdicts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    last = [processes[int(rank)].last_case for rank in verdicts if int(rank) in processes]
    cases = [case for case in last if case is not None]
    if not cases:
        raise ValueError("no verdict names a rank that ran a line of the answer")
    _, function, call = min(cases)
    for process in processes.values():
        process.keep(function, call)
    return list(verdicts.values())


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
            _, file, number, function, *_ = data
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
                if data[2:]:  # the sender, where any would do: a rank of the group
                    call.peer = call.members[data[2]]
                    self.count(call)

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
        self.count(call)
        self.calls[number] = call
        self.replay.calls.append(call)

    def count(self, call: Call) -> None:
        call.position = self.counts[call.key]
        self.counts[call.key] += 1


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
    told = {}
    for calls in replay.together:
        there = {call.rank for call in calls}
        for call in calls:
            if is_open(call, replay):
                missing = sorted(set(partners(call)) - there)
                other = next((other for other in calls if asked(other) != asked(call)), None)
                whom = "for its end" if other is None else f"but rank {other.rank} calls {other.name}"
                whom = f"for rank{'s' * (len(missing) > 1)} {listed(missing)}" if missing else whom
                replay.waits[call.rank] = f"waits {whom}"
                told[call.rank] = f"waits in {described(call)}, {whom}"
    for rank in sorted({lane.rank for lane in replay.lanes}) if told else []:
        if rank not in told:
            _, path, line, _ = last_line(replay, rank)
            replay.waits[rank] = f"stands in line {line}: {linecache.getline(path, line).strip()}"
            told[rank] = f"is in no call of a group; it {replay.waits[rank]}"
    replay.parted = calls_where_parted(replay)
    failed = replay.notes
    replay.notes = [in_words_where_parted(replay)] if replay.parted else []
    replay.notes += [f"rank {rank} {words}" for rank, words in sorted(told.items())]
    replay.notes += failed


def last_line(replay: Replay, rank: int) -> tuple[int, str, int, str]:
    """(row, file, line, function) of the last line that a rank came to."""
    events = [event for lane in replay.lanes if lane.rank == rank for event in lane.events]
    lines = [(event.row, *event.data[1:4]) for event in events if event.kind == "line"]
    row, file, line, function = max(lines, default=(0, -1, 0, ""))
    return row, replay.files[file] if file >= 0 else "", line, function


def spans(replay: Replay) -> list[Span]:
    """Of each rank the innermost lines that began at least two collectives."""
    calls = {id(call.begun): call for call in replay.calls if not call.is_message}
    found = []
    for lane in replay.lanes:
        of_lane: list[Span] = []
        stack: list[tuple[int, Span]] = []  # frames, and the line in which each stands
        for event in lane.events:
            if event.kind == "line":
                frame, file, line, function, *_, caller = event.data
                frames = [number for number, _ in stack]
                kept = frames.index(frame) if frame in frames else len(frames)
                if frame not in frames and caller in (0, *frames):
                    kept = frames.index(caller) + 1 if caller else 0
                while len(stack) > kept:
                    span = stack.pop()[1]
                    span.end = event.row
                    is_innermost = not of_lane or of_lane[-1].begin < span.begin
                    if 1 < len(span.calls) <= MOST_IN_SPAN and is_innermost and span.function != "<module>":
                        of_lane.append(span)
                source = linecache.getline(replay.files[file], line).strip()
                stack.append((frame, Span(lane.rank, function, line, source, event.row, event.row, [])))
            elif id(event) in calls:
                for _, span in stack:
                    span.calls.append(calls[id(event)])
        found += of_lane
    return found


def described(call: Call) -> str:
    if call.is_message:
        way = "to" if call.operation in SENDS else "from"
        whom = "any rank" if call.peer is None else f"rank {call.peer}"
        return f"{call.name} {way} {whom}, number {call.position + 1}"
    return f"{call.name}, collective {call.position + 1} of its group"


def partners(call: Call) -> list[int]:
    if call.is_message:
        return [] if call.peer is None else [call.peer]
    return list(call.members)


def is_open(call: Call, replay: Replay) -> bool:
    """Whether its thread did nothing after it: it waits there."""
    events = replay.lanes[call.begun.lane].events
    return call.ended is None and events[-1] in (call.begun, call.waited)


def calls_where_parted(replay: Replay) -> list[Call]:
    """The collective from which on the ranks of a group no longer call the same, as far as one sees."""
    lines = lines_of_calls(replay)
    parted: dict[str, list[Call]] = {}  # {group: the calls}
    for calls in replay.together:
        if calls[0].is_message:
            continue
        asked = {
            (call.name, *lines[id(call.begun)], *(call.shapes[:1] * (call.name in EQUAL))) for call in calls
        }
        if len(asked) == 1 and len(calls) == len(calls[0].members):
            parted.pop(calls[0].group, None)  # they had called it in different lines, as in if and else
        else:
            parted.setdefault(calls[0].group, calls)
    return min(parted.values(), key=lambda calls: min(call.begun.row for call in calls), default=[])


def lines_of_calls(replay: Replay) -> dict[int, tuple[int, int]]:
    """{id of a begun call: file and line in which its thread was}"""
    lines = {}
    for lane in replay.lanes:
        place = (-1, 0)
        for event in lane.events:
            if event.kind == "line":
                place = (event.data[1], event.data[2])
            lines[id(event)] = place
    return lines


def in_words_where_parted(replay: Replay) -> str:
    calls = replay.parted
    lines = lines_of_calls(replay)
    told = [f"rank {call.rank}: {asked(call)}, line {lines[id(call.begun)][1]}" for call in calls]
    told += [
        f"rank {rank}: no call" for rank in sorted(set(calls[0].members) - {call.rank for call in calls})
    ]
    return f"the ranks part at collective {calls[0].position + 1} of their group: {'; '.join(told)}"


def asked(call: Call) -> str:
    return f"{call.name} of {call.shapes[0]}" if call.shapes else call.name


def slots_of(calls: list[Call]) -> dict[int, int]:
    """{id of a call: a place beside the calls of its rank that are open when it begins}."""
    slots = {}
    busy: dict[int, list[float]] = defaultdict(lambda: [0.0] * SLOTS)  # {rank: until which row each place is}
    for call in sorted(calls, key=lambda call: call.begun.row):
        until = busy[call.rank]
        free = [slot for slot, row in enumerate(until) if row <= call.begun.row]
        slots[id(call)] = slot = free[0] if free else SLOTS - 1
        until[slot] = float("inf") if call.ended is None else call.ended.row
    return slots


def listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
