"""Ranks, as what their processes say makes them up."""

import linecache
import re
from dataclasses import dataclass, field
from pathlib import Path

from .answer import Answer, Child, Stack, Stacks
from .source import messages_in

BUSY = 0.03  # a process that uses more than this share of a processor computes
MOVES = 1000.0  # and one that moves more bytes than this in a second reads or writes
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
FOR_ALL = ("init_process_group", "new_group", "monitored_barrier", "init_rpc", "rpc.shutdown")
MESSAGE = re.compile(r"(?P<kind>send|recv) \d+(->|<-)(?P<peer>\d+)")  # as nccl's recorder has it
# What a rank's own line calls in C++, so that no frame shows it.
WAITS_AT = ("store.get(", "store.wait(", "store.barrier(", ".wait()", ".synchronize()")
DEBUGGERS = re.compile(r"/(pdb|bdb|ipdb|pudb|cmd|code|getpass)(/.*)?\.py$|/IPython/")
KEYBOARD = re.compile(r"\b(input|getpass|breakpoint)\s*\(|\bstdin\b")
STOPS = re.compile(r"\b(breakpoint|set_trace|post_mortem|embed)\s*\(")
STARTS_A_PROCESS = ("_bootstrap", "_worker_loop")
# The text of an error by which a rank tells that another one has gone or does not come: of gloo, the store,
# nccl, and torch's watchdog of nccl. A bare "timed out" or "NCCL error" is none: it may be the cause.
ECHO_TYPES = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError")
ECHO = re.compile(
    r"Connection (closed by peer|reset by peer|refused|was likely closed)|Broken pipe|connectFullMesh failed|"
    r"Timed out waiting|Connect timeout|Application timeout caused pair closure|"
    r"[Ww]ait timeout|Socket Timeout|waiting for clients|client socket has (timed out|failed to connect)|"
    r"remote process exit(ed|ing)|communicator was aborted|Watchdog caught collective operation timeout"
)


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
    place_age: float = 0.0  # seconds between then and now, or its end
    waits_in: str = ""  # a function of torch, if a thread is in one that waits
    messages: list[tuple[str, int | None]] = field(default_factory=list)  # (send or recv, the other rank)
    stacks: Stacks = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    knows_calls: bool = True  # False: py-spy has seen its stack, and nothing else is known
    groups: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, list[int]] = field(
        default_factory=dict
    )  # {group: calls begun, done, and its own count}
    stands_in: str = ""  # ``waits_in`` without the names of other ranks
    arguments: dict = field(default_factory=dict)  # of the function of torch.distributed that it is in
    on_this_machine: list[int] = field(default_factory=list)  # the ranks that its launcher starts here
    works: str = ""  # by what it shows life, such as "computes"
    keyboard: str = ""  # what reads from it
    breakpoint: str = ""  # the line that has called the debugger, as far as it stands above
    helpers: list[str] = field(default_factory=list)  # where its other threads and processes are
    dead_threads: list[str] = field(default_factory=list)  # that an exception has ended, in words
    handles: str = ""  # the exception in whose ``except`` or ``finally`` it is, and where that was raised
    error: str = ""
    code: int | None = None  # how its process ended, a signal is negative
    died: int | None = None  # as which one of the job's processes
    problem: str = ""

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.calls if not call.done]

    @property
    def is_dead(self) -> bool:
        return self.state in ("gone", "failed", "ended")

    @property
    def is_echo(self) -> bool:
        """Whether it failed because another one has gone or has not come."""
        kind, _, text = self.error.partition(": ")
        return kind.rpartition(".")[2] in ECHO_TYPES and bool(ECHO.search(text))

    @property
    def waits(self) -> bool:
        """Whether it is in a call that others must come to. Of one that does not answer the past is known."""
        if self.state in ("silent", "stopped"):
            return False
        begun = any(begun > done for begun, done, _ in self.status.values())
        return bool(begun or self.open_calls or self.waits_in)

    def progress(self) -> tuple:
        """What changes when the rank makes a call, or when one of its calls is done.

        Where a silent rank stands is asked by a signal, but not at each look: the other looks have its last
        answer, and the two would differ for ever.
        """
        stands_in = "" if self.state == "silent" else self.stands_in
        return self.pid, self.state, str(sorted(self.status.items())), stands_in


def ranks_of(answers: list[Answer]) -> dict[int, Rank]:
    """{rank: Rank}. Of several processes that claim a rank, such as loaders' workers, the topmost one."""
    claims: dict[int, list[Answer]] = {}
    for report in answers:
        number = number_of(report)
        if number is not None:
            claims.setdefault(number, []).append(report)
    chosen = {number: topmost(claims[number]) for number in sorted(claims)}
    pids = {report.pid for report in chosen.values()}
    ranks = {}
    for number, report in chosen.items():
        below = [other for other in answers if nearest_rank(other, pids) == report.pid]
        ranks[number] = make_rank(number, report, below)
    return ranks


def nearest_rank(report: Answer, pids: set[int]) -> int | None:
    """The rank's process that a process is below of."""
    if report.pid in pids:
        return None
    return next((pid for pid in report.ancestors if pid in pids), None)


def number_of(report: Answer) -> int | None:
    if report.rank is not None:
        return report.rank
    text = report.variables.get("RANK", "")
    return int(text) if text.isdigit() else None


def topmost(claims: list[Answer]) -> Answer:
    """The process that is the rank: one with a group, if there is any, and with none of them above it."""
    with_group = [claim for claim in claims if claim.rank is not None]
    candidates = with_group or claims
    pids = {claim.pid for claim in candidates}
    top = [claim for claim in candidates if claim.parent not in pids]
    alive = [claim for claim in top if claim.alive]
    newest_first = sorted(alive or top, key=lambda report: -report.time)
    return newest_first[0]


def make_rank(number: int, report: Answer, below: list[Answer]) -> Rank:
    variables = report.variables
    world_size = report.world_size or int(variables.get("WORLD_SIZE", 0) or 0)
    rank = Rank(number, report.pid, world_size, state_of(report))
    rank.problem = report.problem
    rank.on_this_machine = ranks_here(variables)
    rank.stacks = report.stacks
    rank.knows_calls = report.knows_calls
    rank.groups = report.groups
    rank.status = report.status
    rank.arguments = report.arguments
    rank.calls = [make_call(call) for call in report.calls]
    main = main_stack(rank.stacks)
    rank.place = own_place(main)
    rank.place_age = report.stacks_age
    if rank.state in ("alive", "silent"):
        if rank.place_age == 0:  # an older stack says nothing of what it waits for now
            look_at_stacks(rank, report, main)
        rank.dead_threads = [
            f"has lost its thread {thread.name}: {thread.error}, at {own_place(thread.place)}"
            for thread in report.dead_threads
        ]
        if report.handles and rank.state == "alive":
            rank.handles = f"{report.handles.error}, raised at {own_place(report.handles.place)}"
        rank.helpers = [*threads_of(rank.stacks), *processes_of(below, report.children)]
    if report.death is not None:
        rank.died, rank.code = report.death.order, report.death.code
    ending = report.bye or report
    if rank.state == "failed":
        rank.error = ending.error
        rank.place = own_place(ending.place)
        if report.bye:
            rank.calls = [make_call(call) for call in report.bye.calls] or rank.calls
    return rank


def look_at_stacks(rank: Rank, report: Answer, main: Stack) -> None:
    """What it waits in, and for whom."""
    for stack in rank.stacks.values():
        rank.waits_in = rank.waits_in or waiting_function(stack)
        if not rank.knows_calls:
            rank.waits_in = rank.waits_in or collective_in(stack)
    rank.stands_in = rank.waits_in
    rank.keyboard = keyboard_of(main, rank.place)
    if rank.keyboard == "a debugger":
        rank.breakpoint = breakpoint_of(rank.place)
    rank.messages = messages_of(report, rank)
    if rank.messages:
        rank.waits_in = " and ".join(message_words(*message) for message in rank.messages)


def ranks_here(variables: dict[str, str]) -> list[int]:
    """torchrun gives the ranks of a machine numbers in a row."""
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if not all(variables.get(name, "").isdigit() for name in names):
        return []
    rank, local_rank, local_world_size = (int(variables[name]) for name in names)
    return list(range(rank - local_rank, rank - local_rank + local_world_size))


def message_words(kind: str, peer: int | None) -> str:
    to_or_from = "to" if "send" in kind else "from"
    return f"{kind} {to_or_from} {'any rank' if peer is None else f'rank {peer}'}"


def messages_of(report: Answer, rank: Rank) -> list[tuple[str, int | None]]:
    """From the stack; from a recorder that notes them, ``nccl:send 0->1``; or from the source."""
    if report.message:
        return [report.message]
    messages: list[tuple[str, int | None]] = []
    for call in rank.open_calls:
        match = MESSAGE.match(call.kind)
        if call.is_p2p and match:
            messages.append((match["kind"], int(match["peer"])))
    if messages or rank.open_calls or rank.waits_in not in ("wait", ""):
        return messages
    messages = report.batches
    if rank.waits_in == "wait":
        for file, line, function, known in report.numbers:
            messages = messages or messages_in(file, line, function, known, rank.rank, rank.world_size)
    return messages if rank.waits_in == "wait" or is_in_torch(rank) else []


def is_in_torch(rank: Rank) -> bool:
    stack = main_stack(rank.stacks)
    return bool(stack) and "/torch/distributed/" in stack[-1][0]


def state_of(report: Answer) -> str:
    if not report.alive:
        if report.bye is None:
            return "gone"
        return "failed" if report.bye.error else "ended"
    if report.stopped:
        return "stopped"
    if not report.answered:
        return "silent"
    has_left = not any(place[4] for place in main_stack(report.stacks))
    return "failed" if report.error and has_left else "alive"


def main_stack(stacks: Stacks) -> Stack:
    return next(iter(stacks.values()), [])


def own_place(stack: Stack) -> Place | None:
    """The innermost line of the reader's own code; without any, of no library that all have; else any."""
    own = [frame for frame in stack if frame[4]]
    others = [frame for frame in stack if "/torch/" not in frame[0] and "-packages/" in frame[0]]
    chosen = own or others or stack
    if not chosen:
        return None
    file, line, function, text, _ = chosen[-1]
    return Place(file, line, function, text)


def waiting_function(stack: Stack) -> str:
    for _, _, function, _, is_own in stack:
        if function in WAITS_IN and not is_own:
            return WAITS_IN[function]
    if stack and stack[-1][4]:  # else it is in a function of Python's, such as that of an Event
        for text in WAITS_AT:
            if text in stack[-1][3]:
                return text.rstrip("()").lstrip(".")
    return ""


def keyboard_of(stack: Stack, place: Place | None) -> str:
    """``pdb``, or the name of the function that reads."""
    for frame in stack:
        match = DEBUGGERS.search(frame[0])
        if match and not frame[4]:
            return "a debugger"
    if place is not None and stack and (stack[-1][4] or "codecs" in stack[-1][0]):
        match = KEYBOARD.search(place.text)
        if match:
            return match[0].rstrip("( ")
    return ""


def breakpoint_of(place: Place | None) -> str:
    """A debugger stops at the line after; the call stands above, unless it was reached another way."""
    if place is None:
        return ""
    for number in range(place.line, 0, -1):
        text = linecache.getline(place.file, number).strip()
        if STOPS.search(text):
            return f"by {Path(place.file).name}:{number}: {text}"
        if text.startswith("def "):
            break
    return ""


def threads_of(stacks: Stacks) -> list[str]:
    """Where the other threads are, as far as they are in the reader's own code."""
    lines = []
    for name in list(stacks)[1:]:
        if any(frame[4] for frame in stacks[name]):
            lines.append(f"its thread {name}: {own_place(stacks[name])}")
    return lines


def processes_of(below: list[Answer], children: list[Child]) -> list[str]:
    """Where the processes of a rank are, such as a loader's workers; idle ones are left out."""
    lines = []
    for report in below:
        stack = main_stack(report.stacks)
        begins = [n for n, frame in enumerate(stack) if frame[2] in STARTS_A_PROCESS]
        stack = stack[begins[-1] + 1 :] if begins else stack
        if report.alive and any(frame[4] for frame in stack):
            is_loader = any("torch/utils/data" in frame[0] for frame in stack)
            name = "its loader's worker" if is_loader else "its child process"
            lines.append(f"{name}: {own_place(stack)}")
    lines += [f"its child process: {child.command}" for child in children if child.command]
    return list(dict.fromkeys(lines))


def collective_in(stack: Stack) -> str:
    """The function of ``torch.distributed`` that a stack is in. A backward of DDP is not seen in it."""
    for file, _, function, _, _ in stack:
        if file.endswith("torch/distributed/distributed_c10d.py") and not function.startswith("_"):
            return function
    return ""


def make_call(call: dict) -> Call:
    place = Place(call["place"][0], call["place"][1], call["place"][2], "") if call["place"] else None
    kind = call["kind"].partition(":")[2] or call["kind"]  # gloo:all_reduce
    return Call(
        id=call["id"],
        group=call["group"],
        group_name=call["group_name"],
        number=call["number"],
        is_p2p=call["is_p2p"],
        kind=kind,
        shape=shape_of(kind, call),
        done=call["done"],
        place=place,
    )


def shape_of(kind: str, call: dict) -> str:
    """What must be equal on all ranks, such as ``Float[4]``; empty where ranks may differ."""
    if "barrier" in kind or "all_to_all" in kind or "alltoall" in kind or call["is_p2p"]:
        return ""
    takes_outputs = "scatter" in kind
    sizes = call["outputs"] if takes_outputs else call["inputs"]
    types = call["output_types"] if takes_outputs else call["input_types"]
    if not types:
        types = [""] * len(sizes)
    return ", ".join(f"{dtype}{list(size)}" for dtype, size in zip(types, sizes, strict=False))
