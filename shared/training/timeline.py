"""Simulated devices that really wait for each other, and a timeline of what they did. Taught in lesson 15.

Each device has two queues, as a GPU has streams: one computes, one communicates. A queue does one piece of
work after the other. A piece begins when its queue is free and its inputs are there, and a collective when
it is the turn of all its members. So idle time comes from dependencies alone.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from shared.comm.record import least_bytes
from shared.runtime.errors import CourseError

COMPUTE = "compute"
COMMUNICATE = "communicate"
GIVEN = "given"
PATIENCE_S = 20.0  # for the other members of a collective; a wait as long as this is a deadlock


@dataclass(frozen=True)
class Span:
    """A queue of a device did ``what`` from ``start`` to ``end``, seconds since the first piece of work."""

    device: int
    queue: str
    what: str
    start: float
    end: float


@dataclass(eq=False)
class Task:
    """A piece of work in one queue: what it needs, and, once it is done, what it made and when."""

    device: int
    queue: str
    what: str
    inputs: tuple["Task", ...]
    together: "_Meeting | None" = None
    result: Future = field(default_factory=Future)
    start: float = 0.0
    end: float = 0.0
    seconds: float = 0.0  # what was asked for

    def value(self) -> Any:
        """What the work made. Waits for it, and raises what it raised."""
        return self.result.result()


class _Meeting:
    """The members of one collective. It begins when the last of them has come."""

    def __init__(
        self, members: int, function: Callable[[list], list], seconds: Callable[[list], float]
    ) -> None:
        self.function = function
        self.seconds_of = seconds
        self.inputs: dict[int, Any] = {}
        self.outputs: list = []
        self.seconds = 0.0
        self.start = 0.0
        self.barrier = threading.Barrier(members, self._all_are_here, PATIENCE_S)

    def _all_are_here(self) -> None:
        inputs = [self.inputs[number] for number in sorted(self.inputs)]
        self.start = time.perf_counter()
        self.seconds = self.seconds_of(inputs)
        self.outputs = self.function(inputs)

    def join(self, number: int, value: Any) -> None:
        self.inputs[number] = value
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            raise CourseError(
                "a collective waits for a device that never joins it: the devices call collectives in "
                "different orders, or one of them fails"
            ) from None


class SimulatedDevices:
    """``number`` devices, two queues each, on one CPU.

        devices = SimulatedDevices(2, bytes_per_s=1e6)
        y = devices.compute(0, "forward", 0.01, layer, devices.given(0, x))
        y = devices.send(y, 1)
        spans = devices.finish()

    Args:
        alpha_s: seconds that each message takes whatever its size.
        bytes_per_s: how fast a device sends.

    Compute takes as long as it is told, communication as long as the alpha-beta model of lesson 05 says for
    the way that sends least. A function that computes for longer than it is told spoils the picture, so keep
    tensors small. Use it as a context: leaving it ends the threads.
    """

    def __init__(self, number: int, alpha_s: float = 0.0, bytes_per_s: float = float("inf")) -> None:
        self.number = number
        self.alpha_s = alpha_s
        self.bytes_per_s = bytes_per_s
        self.tasks: list[Task] = []
        self._queues = {
            (device, queue): ThreadPoolExecutor(1, f"{queue} {device}")
            for device in range(number)
            for queue in (COMPUTE, COMMUNICATE)
        }
        for executor in self._queues.values():
            executor.submit(_first_backward).result()

    def __enter__(self) -> "SimulatedDevices":
        return self

    def __exit__(self, *_: object) -> None:
        for executor in self._queues.values():
            executor.shutdown(wait=True, cancel_futures=True)

    def given(self, device: int, value: Any) -> Task:
        """A value that lies on ``device`` from the beginning."""
        task = Task(device, COMPUTE, GIVEN, ())
        task.result.set_result(value)
        return task

    def compute(self, device: int, what: str, seconds: float, function: Callable, *inputs: Task) -> Task:
        """Queue ``function(*values of the inputs)`` on ``device``; it takes ``seconds``. Returns at once.

        Raises:
            ValueError: an input lies on another device; ``send`` it first.
        """
        for given in inputs:
            if given.device != device:
                raise ValueError(
                    f"{what} on device {device} needs {given.what} of device {given.device}: send it"
                )
        task = Task(device, COMPUTE, what, inputs, seconds=seconds)

        def work() -> Any:
            values = [given.value() for given in inputs]
            task.start = time.perf_counter()
            result = function(*values)
            _sleep_until(task.start + seconds)
            task.end = time.perf_counter()
            return result

        return self._queue(task, work)

    def send(self, tensor: Task, target: int, what: str = "send") -> Task:
        """Bring a tensor to another device. It occupies the communication queues of both."""
        source = tensor.device
        if target == source:
            return tensor

        def seconds(values: list) -> float:
            return self.alpha_s + _bytes_of(values[0]) / self.bytes_per_s

        meeting = _Meeting(2, lambda values: [None, _copy(values[0])], seconds)
        self._join(meeting, 0, source, f"{what} to {target}", tensor)
        return self._join(meeting, 1, target, f"{what} from {source}", None)

    def all_reduce(self, tensors: Sequence[Task], what: str = "all_reduce") -> list[Task]:
        """Each device gets the sum of the tensors, one from each device."""
        return self._collective("all_reduce", what, tensors, lambda values: [sum(values)] * len(values))

    def all_gather(self, tensors: Sequence[Task], what: str = "all_gather") -> list[Task]:
        """Each device gets all tensors, joined along the first dimension."""
        return self._collective("all_gather", what, tensors, lambda values: [torch.cat(values)] * len(values))

    def reduce_scatter(self, tensors: Sequence[Task], what: str = "reduce_scatter") -> list[Task]:
        """Device i of n gets the i-th of n parts, along the first dimension, of the sum."""
        return self._collective(
            "reduce_scatter", what, tensors, lambda values: list(sum(values).chunk(len(values)))
        )

    def all_to_all(self, tensors: Sequence[Task], what: str = "all_to_all") -> list[Task]:
        """Device i of n gets the i-th of n parts of each tensor, joined along the first dimension."""

        def function(values: list) -> list:
            parts = [value.chunk(len(values)) for value in values]
            return [torch.cat([chunks[number] for chunks in parts]) for number in range(len(values))]

        return self._collective("all_to_all", what, tensors, function)

    def finish(self) -> list[Span]:
        """Wait for all work; what was done, in the order of its beginning. Raises what any of it raised."""
        for task in self.tasks:
            task.value()
        if not self.tasks:
            return []
        first = min(task.start for task in self.tasks)
        spans = [Span(t.device, t.queue, t.what, t.start - first, t.end - first) for t in self.tasks]
        return sorted(spans, key=lambda span: (span.start, span.device, span.queue))

    def ideal(self) -> list[Span]:
        """The same work on devices without any overhead: what dependencies and queues alone make of it.

        Call it after ``finish``. Times follow from the order in the queues and the seconds asked for, so
        they are the same on each run.
        """
        members: dict[object, list[Task]] = {}
        queues: dict[tuple[int, str], deque[Task]] = {}
        for task in self.tasks:
            members.setdefault(task.together or task, []).append(task)
            queues.setdefault((task.device, task.queue), deque()).append(task)
        free = dict.fromkeys(queues, 0.0)
        times: dict[Task, tuple[float, float]] = {}
        while len(times) < len(self.tasks):
            for queue in queues.values():
                if queue:
                    group = members[queue[0].together or queue[0]]
                    if all(_is_next(task, queues, times) for task in group):
                        _give_times(group, free, times)
                        for task in group:
                            queues[task.device, task.queue].popleft()
        spans = [Span(t.device, t.queue, t.what, *times[t]) for t in self.tasks]
        return sorted(spans, key=lambda span: (span.start, span.device, span.queue))

    def _collective(
        self, op: str, what: str, tensors: Sequence[Task], function: Callable[[list], list]
    ) -> list[Task]:
        count = len(tensors)
        devices = [tensor.device for tensor in tensors]
        if len(set(devices)) != count:
            raise ValueError(f"{what}: each device gives one tensor, not {devices}")

        def seconds(values: list) -> float:
            messages = 2 * (count - 1) if op == "all_reduce" else count - 1
            return messages * self.alpha_s + least_bytes(op, _bytes_of(values[0]), count) / self.bytes_per_s

        meeting = _Meeting(count, function, seconds)
        return [self._join(meeting, i, tensor.device, what, tensor) for i, tensor in enumerate(tensors)]

    def _join(self, meeting: _Meeting, number: int, device: int, what: str, tensor: Task | None) -> Task:
        inputs = () if tensor is None else (tensor,)
        task = Task(device, COMMUNICATE, what, inputs, meeting)

        def work() -> Any:
            meeting.join(number, None if tensor is None else tensor.value())
            task.start = meeting.start
            task.seconds = meeting.seconds
            _sleep_until(meeting.start + meeting.seconds)
            task.end = time.perf_counter()
            return meeting.outputs[number]

        return self._queue(task, work)

    def _queue(self, task: Task, work: Callable[[], Any]) -> Task:
        def run() -> None:
            try:
                task.result.set_result(work())
            except BaseException as error:
                task.result.set_exception(error)

        self.tasks.append(task)
        self._queues[task.device, task.queue].submit(run)
        return task


def _is_next(task: Task, queues: dict[tuple[int, str], deque[Task]], times: dict) -> bool:
    """Whether all work before ``task`` in its queue, and all that it needs, has been given its time."""
    queue = queues[task.device, task.queue]
    needed = [before for before in task.inputs if before.what != GIVEN]
    return bool(queue) and queue[0] is task and all(before in times for before in needed)


def _give_times(group: list[Task], free: dict, times: dict[Task, tuple[float, float]]) -> None:
    """One piece of work, or all members of a collective, begin when the last of them can."""
    start = max(free[task.device, task.queue] for task in group)
    for task in group:
        for before in task.inputs:
            if before in times:
                start = max(start, times[before][1])
    for task in group:
        end = start + task.seconds
        times[task] = (start, end)
        free[task.device, task.queue] = end


def busy_together(spans: Sequence[Span], first: tuple[int, str], second: tuple[int, str]) -> float:
    """Seconds in which two queues, each a (device, queue), worked at the same time."""
    ours = [span for span in spans if (span.device, span.queue) == first]
    others = [span for span in spans if (span.device, span.queue) == second]
    return sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in ours for b in others)


def bubble(spans: Sequence[Span], devices: int) -> float:
    """The share of the time, from the first to the last computation, in which devices computed nothing."""
    computed = [span for span in spans if span.queue == COMPUTE]
    length = max(span.end for span in computed) - min(span.start for span in computed)
    worked = sum(span.end - span.start for span in computed)
    return max(0.0, 1 - worked / (devices * length))


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    while left > 0:
        time.sleep(left)
        left = moment - time.perf_counter()


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.clone()


def _first_backward() -> None:
    """A thread's first backward takes longer than all others; it does not belong in the picture.

    Nor does what torch imports when it is given a gradient for the first time.
    """
    x = torch.ones(2, 2, requires_grad=True)
    y = x @ x
    y.backward(torch.ones_like(y))
