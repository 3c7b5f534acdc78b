"""When does each rank of a ring compute, and when does it send? Four rings on simulated devices.

Run it:      python labs/lab_20_timeline.py
Written by:  notebooks/20_context_parallel.ipynb
"""

from dataclasses import dataclass

import torch
from lab_20_ring import blocks, chunks_of

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.timeline import (
    COMMUNICATE,
    COMPUTE,
    SimulatedDevices,
    Span,
    Task,
    bubble,
    busy_together,
)

READY = "ready"  # takes no time: the moment at which keys may leave


@dataclass(frozen=True)
class Config:
    ranks: int = 4
    block_s: float = 0.004  # attention of a chunk of queries to a chunk of keys
    message: float = 1.5  # what it takes to send keys and values on, in blocks
    slow_message: float = 3.0
    slack: float = 1e-9


class RingOfDevices(SimulatedDevices):
    """Devices whose links work in both directions at once, as a network card's do."""

    def shift(self, tensors: list[Task], what: str) -> list[Task]:
        """Each device gets the tensor of the one before it."""
        return self._collective("send", what, tensors, lambda values: [values[-1], *values[:-1]])


def work_of(rank: int, source: int, ranks: int, zigzag: bool) -> float:
    """Blocks that ``rank`` computes with the keys of ``source``; on the diagonal half of one."""
    found = blocks(chunks_of(rank, ranks, zigzag), chunks_of(source, ranks, zigzag), 1)
    return sum(0.5 if diagonal else 1.0 for *_, diagonal in found)


def attend(keys: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Stands for a step of attention: notes whose keys have been here."""
    return torch.cat([seen, keys])


def after_step(keys: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """The keys, once the step that made ``seen`` is done."""
    return keys


def send_on(devices: RingOfDevices, keys: list[Task], seen: list[Task], what: str) -> list[Task]:
    """Pass the keys on, once the step that made ``seen`` is done; what arrives."""
    ready = []
    for key, one in zip(keys, seen, strict=True):
        ready.append(devices.compute(key.device, READY, 0.0, after_step, key, one))
    return devices.shift(ready, what)


def play(zigzag: bool, ahead: bool, message: float, cfg: Config) -> tuple[list[Span], list[Span]]:
    """One forward of the ring, executed and by dependencies alone. ``ahead``: send, then compute."""
    n = cfg.ranks
    own = [torch.tensor([rank]) for rank in range(n)]
    with RingOfDevices(n, bytes_per_s=own[0].nbytes / (message * cfg.block_s)) as devices:
        keys = [devices.given(rank, own[rank]) for rank in range(n)]
        seen = [devices.given(rank, own[rank][:0]) for rank in range(n)]

        for step in range(n):
            last = step == n - 1
            if ahead and not last:
                following = send_on(devices, keys, seen, f"send {step}")
            for rank in range(n):
                seconds = work_of(rank, (rank - step) % n, n, zigzag) * cfg.block_s
                seen[rank] = devices.compute(rank, f"step {step}", seconds, attend, keys[rank], seen[rank])
            if not ahead and not last:
                following = send_on(devices, keys, seen, f"send {step}")
            keys = following
        executed = [span for span in devices.finish() if span.what != READY]
        ideal = [span for span in devices.ideal() if span.what != READY]
        for rank in range(n):
            order = [(rank - step) % n for step in range(n)]
            found = seen[rank].value().tolist()
            if found != order:
                raise CourseError(f"rank {rank} saw the keys of {found}, not of {order}")
    return executed, ideal


def expected_length(zigzag: bool, ahead: bool, message: float, n: int) -> float:
    """In blocks. A step of zigzag computes 2; in order, the last rank computes 4, but 2 in the first step."""
    step = 2.0 if zigzag else 4.0
    if ahead:
        return max(2.0, message) + (n - 2) * max(step, message) + step
    return 2.0 + (n - 1) * (message + step)


def measure(name: str, zigzag: bool, ahead: bool, message: float, cfg: Config) -> dict:
    """One ring: how long, how much of it idle, how much of the sending is hidden behind computing."""
    executed, ideal = play(zigzag, ahead, message, cfg)
    length = max(span.end for span in ideal) / cfg.block_s
    expected = expected_length(zigzag, ahead, message, cfg.ranks)
    if abs(length - expected) > cfg.slack:
        raise CourseError(f"{name}: takes {length:g} blocks, expected {expected:g}")
    if max(span.end for span in executed) / cfg.block_s < expected - cfg.slack:
        raise CourseError(f"{name}: executed it is faster than dependencies allow")
    last = cfg.ranks - 1  # in order, this rank has the most to compute
    queues = ((last, COMPUTE), (last, COMMUNICATE))
    if not ahead and busy_together(executed, *queues) > 0:
        raise CourseError(f"{name}: executed, messages overlap with computing")
    hidden = busy_together(ideal, *queues) / cfg.block_s / (last * message)
    if ahead and hidden == 0:
        raise CourseError(f"{name}: no message overlaps with computing")
    lines = []
    for one in ideal:
        if one.end > one.start:
            lines.append([one.device, one.queue, one.start / cfg.block_s, one.end / cfg.block_s])
    return {"length": length, "idle": bubble(ideal, cfg.ranks), "hidden": hidden, "lines": lines}


def main(cfg: Config) -> None:
    results = {}
    for message in (cfg.message, cfg.slow_message):
        for zigzag in (False, True):
            for ahead in (False, True):
                layout = "zigzag" if zigzag else "in order"
                name = f"{layout}, {'send, then compute' if ahead else 'compute, then send'}, {message:g}"
                found = measure(name, zigzag, ahead, message, cfg)
                results[name] = found
                told = (
                    f"{found['length']:4.1f} blocks, idle {found['idle']:3.0%}, hidden {found['hidden']:4.0%}"
                )
                print(f"{name:34s} {told}")
    record_results("lab_20_timeline", {"rings": results, "ranks": cfg.ranks})


if __name__ == "__main__":
    run(main, Config())
