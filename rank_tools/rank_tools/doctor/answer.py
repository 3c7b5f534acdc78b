"""What is known of one process of a job: what ``inside`` writes there as JSON, and what the doctor sees.

``inside`` is copied alone into the job, so it writes plain dicts; they become an ``Answer`` here.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

Stack = list[list]  # [file, line, function, text of the line, whether it is of the reader's own code] a frame
Stacks = dict[str, Stack]  # {thread: its stack, innermost call last}, the main thread first


@dataclass
class Death:
    """The end of a process. ``order``: which one it is among those that were seen to end; ``at``: when."""

    order: int
    at: float  # as time.time() has it
    code: int | None = None  # a signal is negative; None if its parent was faster than we


class Child(NamedTuple):
    """A process below one of the job's, without our thread. ``moved``: bytes read and written."""

    pid: int
    command: str
    cpu_s: float
    moved: int


@dataclass
class Handled:
    """An exception in whose ``except`` or ``finally`` a thread is. ``place``: where it was raised."""

    error: str
    place: Stack


@dataclass
class DeadThread:
    """A thread that an exception has ended."""

    name: str
    error: str
    place: Stack


@dataclass
class Answer:
    """What a process said last (the first four parts), and what the doctor has seen of it (the last one)."""

    # Who it is. ``time``: when it said so, as time.time() has it.
    pid: int
    parent: int
    time: float
    variables: dict[str, str]
    is_fork: bool = False
    number: int = 0  # of the question
    level: int = 0  # of the answer: BRIEF, CALLS or FULL

    # Where it is, and what it has used since it began, without our thread.
    stacks: Stacks = field(default_factory=dict)
    handles: Handled | None = None
    dead_threads: list[DeadThread] = field(default_factory=list)
    cpu_s: float = 0.0
    moved: int = 0  # bytes read and written
    sockets: int | None = None  # bytes sent and received by those that are open; None: it was not asked
    error: str = ""  # the exception that nobody has caught: its first line
    text: str = ""  # all of it
    place: Stack = field(default_factory=list)

    # What torch knows. The forms of ``status`` and ``calls`` are those of ``inside``.
    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, list[int]] = field(default_factory=dict)
    calls: list[dict] = field(default_factory=list)
    knows_calls: bool = True  # False: py-spy has seen its stack, and nothing else is known
    problem: str = ""

    # What the recorder does not keep: messages are (send or recv, the other rank).
    message: tuple[str, int | None] | None = None
    batches: list[tuple[str, int | None]] = field(default_factory=list)
    arguments: dict = field(default_factory=dict)
    numbers: list[list] = field(default_factory=list)

    # What the doctor sees from outside.
    alive: bool = True
    answered: bool = True
    stopped: bool = False
    bye: "Answer | None" = None
    death: Death | None = None
    stacks_age: float = 0.0  # seconds between them and now, or its end
    use: tuple[float, int] = (0.0, 0)  # processor seconds and bytes, with our thread
    ancestors: list[int] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)

    @classmethod
    def from_json(cls, written: dict) -> "Answer":
        """Of what ``inside`` has written.

        Raises:
            TypeError: it has another field, or lacks one.
        """
        answer = cls(**written)
        answer.handles = Handled(**written["handles"]) if written.get("handles") else None
        answer.dead_threads = [DeadThread(**thread) for thread in written.get("dead_threads", [])]
        answer.message = (written["message"][0], written["message"][1]) if written.get("message") else None
        answer.batches = [(kind, peer) for kind, peer in written.get("batches", [])]
        return answer
