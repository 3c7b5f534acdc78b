"""A device as its host sees it: work is launched, two streams do it in order. Taught in lesson 17.

The host of a GPU does not compute. It launches work into streams and goes on at once. A stream does its work
in the order in which it was launched, and an event lets it wait for work of another stream. This is all that
decides what overlaps, so a few sums tell when each piece begins and ends: nothing is executed here. In data
and tensor parallel all ranks do the same at the same time, so one device stands for all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.training.timeline import COMMUNICATE, COMPUTE, Span, busy_together


@dataclass(frozen=True)
class Work:
    """What was launched: where, and from when to when the stream is at it. Hand it on in ``after``."""

    stream: str
    what: str
    start: float
    end: float


class Device:
    """A host and two streams, one that computes and one that communicates.

        device = Device()
        loss = device.launch(COMPUTE, "backward", 3.0)
        mean = device.launch(COMMUNICATE, "all-reduce", 2.0, after=[loss])
        device.launch(COMPUTE, "step", 1.0, after=[mean])
        device.length, device.exposed

    Args:
        launch_s: what it takes the host to launch a piece of work, where ``launch`` is told nothing else.
    """

    def __init__(self, launch_s: float = 0.0) -> None:
        self.launch_s = launch_s
        self.host = 0.0  # when the host is free again
        self.free = {COMPUTE: 0.0, COMMUNICATE: 0.0}
        self.works: list[Work] = []

    def launch(
        self, stream: str, what: str, seconds: float, after: Iterable[Work] = (), host_s: float | None = None
    ) -> Work:
        """Put work into a stream. It begins when the stream is free and all of ``after`` is done.

        ``host_s``: how long the host needs to launch it. A layer is many kernels: the first begins as soon as
        it is launched, and the last cannot end before it is.
        """
        begun = self.host
        self.host += self.launch_s if host_s is None else host_s
        start = max([begun, self.free[stream], *(earlier.end for earlier in after)])
        work = Work(stream, what, start, max(start + seconds, self.host))
        self.free[stream] = work.end
        self.works.append(work)
        return work

    def wait(self, work: Work) -> None:
        """The host itself waits, as for ``loss.item()``: it launches nothing before this is done."""
        self.host = max(self.host, work.end)

    @property
    def length(self) -> float:
        """From the first launch to the end of the last work."""
        return max(work.end for work in self.works)

    @property
    def communicates(self) -> float:
        """Seconds in which the communication stream is at work."""
        return sum(work.end - work.start for work in self.works if work.stream == COMMUNICATE)

    @property
    def exposed(self) -> float:
        """Seconds of communication during which nothing computes: what it really costs."""
        together = busy_together(self.spans, (0, COMPUTE), (0, COMMUNICATE))
        return self.communicates - together

    @property
    def spans(self) -> list[Span]:
        """For a picture: the work that takes time, in the order of its beginning."""
        spans = [Span(0, work.stream, work.what, work.start, work.end) for work in self.works]
        return sorted((span for span in spans if span.end > span.start), key=lambda span: span.start)
