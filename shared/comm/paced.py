"""A stand-in for a slow network, and a log of each all-reduce. Taught in lesson 09."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue

import torch
import torch.distributed as dist

GBIT = 1e9 / 8  # bytes per second


@dataclass(frozen=True)
class Sending:
    """One all-reduce on the wire. Times are seconds of ``time.perf_counter``."""

    bytes: int
    launched: float  # when it was handed over
    start: float  # when the wire was free for it
    end: float


class Wire:
    """A network that carries one all-reduce at a time, as long as the alpha-beta model of lesson 05 says.

    Args:
        alpha_s: seconds for each message of a ring.
        bytes_per_s: how fast a rank sends. With the defaults a message takes no time and is only logged.

    ``log`` holds what was sent, and ``waits`` when this rank began to wait for something, in seconds of
    ``time.perf_counter``. A wait before backward is over means that backward stood still.
    """

    def __init__(self, alpha_s: float = 0.0, bytes_per_s: float = float("inf")) -> None:
        self.alpha_s = alpha_s
        self.bytes_per_s = bytes_per_s
        self.log: list[Sending] = []
        self.waits: list[float] = []
        self._arriving: Queue[tuple[PacedWork, torch.futures.Future, torch.Tensor]] = Queue()
        self._deliverer: threading.Thread | None = None

    def seconds(self, size: int, ranks: int) -> float:
        """Seconds of an all-reduce of ``size`` bytes: 2 (n - 1) messages of size / n bytes each."""
        return 2 * (ranks - 1) * (self.alpha_s + size / ranks / self.bytes_per_s)

    def send(self, size: int, ranks: int) -> Sending:
        """Put an all-reduce behind those that are under way. Returns at once, as a network card does."""
        now = time.perf_counter()
        start = max(now, self.log[-1].end) if self.log else now
        self.log.append(Sending(size, now, start, start + self.seconds(size, ranks)))
        return self.log[-1]

    def comm_hook(
        self, group: dist.ProcessGroup | None, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """The same wire for torch's DDP: ``ddp.register_comm_hook(group, wire.comm_hook)``."""
        ranks = dist.get_world_size(group)
        work = paced_all_reduce(self, _all_reduce)(bucket.buffer().div_(ranks), group=group, async_op=True)
        if self._deliverer is None:
            self._deliverer = threading.Thread(target=self._deliver, daemon=True)
            self._deliverer.start()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._arriving.put((work, future, bucket.buffer()))
        return future

    def _deliver(self) -> None:
        while True:
            work, future, tensor = self._arriving.get()
            work.wait()
            future.set_result(tensor)


class PacedWork:
    """What ``all_reduce(..., async_op=True)`` returns: done when the work is, but not before the wire."""

    def __init__(self, work: dist.Work, sending: Sending, waits: list[float]) -> None:
        self.work = work
        self.sending = sending
        self.waits = waits

    def wait(self) -> bool:
        self.waits.append(time.perf_counter())
        self.work.wait()
        left = self.sending.end - time.perf_counter()
        while left > 0:
            time.sleep(left)
            left = self.sending.end - time.perf_counter()
        return True


_all_reduce = dist.all_reduce


def paced_all_reduce(wire: Wire, function):
    """``function``, torch's all_reduce, made as slow as the wire."""

    def wrapper(tensor: torch.Tensor, op=dist.ReduceOp.SUM, group=None, async_op: bool = False):
        work = function(tensor, op, group, async_op=True)
        sending = wire.send(tensor.nbytes, dist.get_world_size(group))
        paced = PacedWork(work, sending, wire.waits)
        if async_op:
            return paced
        paced.wait()
        return None

    return wrapper


@contextmanager
def on_wire(wire: Wire) -> Iterator[Wire]:
    """Send each ``dist.all_reduce`` of this process over ``wire`` while the context is open."""
    before = dist.all_reduce
    dist.all_reduce = paced_all_reduce(wire, before)
    try:
        yield wire
    finally:
        dist.all_reduce = before
