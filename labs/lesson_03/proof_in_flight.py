"""What may be touched between ``isend`` and ``wait``: nothing.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_03/proof_in_flight.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError, waited_in_vain
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run

GO, DATA = 1, 2  # tags


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (1, 1_000_000)  # 4 bytes and 4 MB
    lost_handles: int = 20
    timeout_s: float = 3.0


def hurried(x: torch.Tensor, to: int, mail: dist.ProcessGroup) -> None:
    """Overwrite ``x`` while the message may still be here."""
    work = dist.isend(x, to, group=mail, tag=DATA)
    x.fill_(2.0)
    dist.send(torch.ones(1), to, group=mail, tag=GO)
    work.wait()


def patient(x: torch.Tensor, to: int, mail: dist.ProcessGroup) -> None:
    """Overwrite ``x`` after ``wait``."""
    work = dist.isend(x, to, group=mail, tag=DATA)
    dist.send(torch.ones(1), to, group=mail, tag=GO)
    work.wait()
    x.fill_(2.0)


def copied(x: torch.Tensor, to: int, mail: dist.ProcessGroup) -> None:
    """Send a copy: ``x`` is free at once. The handle keeps the copy alive."""
    work = dist.isend(x.clone(), to, group=mail, tag=DATA)
    x.fill_(2.0)
    dist.send(torch.ones(1), to, group=mail, tag=GO)
    work.wait()


def arrives(way: Callable, size: int, mail: dist.ProcessGroup) -> float | None:
    """Rank 0 sends ones to each rank, then writes twos into its tensor; return what arrives here.

    A receiver asks for the data after it heard GO, so until then they cannot have left rank 0.
    """
    if dist.get_rank() == 0:
        for rank in range(1, dist.get_world_size()):
            way(torch.ones(size), rank, mail)
        return None
    dist.recv(torch.empty(1), 0, group=mail, tag=GO)
    buffer = torch.zeros(size)
    dist.recv(buffer, 0, group=mail, tag=DATA)
    assert buffer.min() == buffer.max(), "a mixture of old and new values"
    return buffer[0].item()


def read_too_early(mail: dist.ProcessGroup) -> None:
    """A receiver looks into its buffer before and after ``wait``."""
    if dist.get_rank() == 0:
        for rank in range(1, dist.get_world_size()):
            dist.recv(torch.empty(1), rank, group=mail, tag=GO)
            dist.send(torch.ones(10), rank, group=mail, tag=DATA)
        return
    buffer = torch.zeros(10)
    work = dist.irecv(buffer, 0, group=mail, tag=DATA)
    assert not work.is_completed() and buffer.sum() == 0, "nothing was sent yet"
    dist.send(torch.ones(1), 0, group=mail, tag=GO)
    work.wait()
    assert work.is_completed() and buffer.sum() == 10


def lose_the_handle(to: int, value: float, mail: dist.ProcessGroup) -> None:
    """Nobody keeps what ``isend`` returns, so it is gone when this function returns."""
    dist.isend(torch.full((10,), value), to, group=mail, tag=DATA)


def receiver_waits_already(cfg: Config, mail: dist.ProcessGroup) -> int:
    """Rank 0 loses handles while the receivers wait for the messages; return how many arrive here."""
    if dist.get_rank() == 0:
        for number in range(cfg.lost_handles):
            for rank in range(1, dist.get_world_size()):
                dist.recv(torch.empty(1), rank, group=mail, tag=GO)
                lose_the_handle(rank, float(number), mail)
        return 0
    arrived = 0
    for number in range(cfg.lost_handles):
        buffer = torch.full((10,), -1.0)
        work = dist.irecv(buffer, 0, group=mail, tag=DATA)
        dist.send(torch.ones(1), 0, group=mail, tag=GO)  # behind the request for the data, to the same rank
        work.wait()
        arrived += int(bool((buffer == number).all()))
    return arrived


def receiver_comes_later(lost: dist.ProcessGroup, mail: dist.ProcessGroup) -> None:
    """Rank 0 loses a handle, and only then the receivers ask for the message: they wait in vain."""
    if dist.get_rank() == 0:
        for rank in range(1, dist.get_world_size()):
            lose_the_handle(rank, 1.0, lost)
            dist.send(torch.ones(1), rank, group=mail, tag=GO)
        return
    dist.recv(torch.empty(1), 0, group=mail, tag=GO)
    assert_times_out(lambda: dist.recv(torch.empty(10), 0, group=lost, tag=DATA))


def wait_twice(cfg: Config, once: dist.ProcessGroup) -> None:
    """Rank 0 waits twice for one message that arrives: the second wait ends in a timeout."""
    if dist.get_rank() == 0:
        work = dist.isend(torch.ones(10), 1, group=once)
        work.wait()
        assert_times_out(lambda: work.wait(timedelta(seconds=cfg.timeout_s)))
    elif dist.get_rank() == 1:
        dist.recv(torch.empty(10), 0, group=once)


def assert_times_out(call: Callable) -> None:
    """The call ends with an error because nothing comes."""
    try:
        call()
    except RuntimeError as error:
        if not waited_in_vain(error):
            raise
    else:
        raise CourseError("this call should have waited in vain, but it returned")


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        mail = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
        sizes = " and ".join(f"{size:,}" for size in cfg.sizes)
        for way, expected in ((hurried, 2.0), (patient, 1.0), (copied, 1.0)):
            for size in cfg.sizes:
                value = arrives(way, size, mail)
                if value not in (None, expected):
                    raise CourseError(f"{way.__name__}, {size} numbers: {value} arrived, expected {expected}")
            print_on_rank_0(f"{way.__name__}, {sizes} numbers: sent 1.0, each other rank got {expected}")
        read_too_early(mail)
        print_on_rank_0("irecv: zeros before wait, ones after it")

        arrived = receiver_waits_already(cfg, mail)
        if group.rank > 0 and arrived != cfg.lost_handles:
            raise CourseError(f"{arrived} of {cfg.lost_handles} messages arrived whose handles were lost")
        print_on_rank_0(
            f"handle lost, receiver waits already: {cfg.lost_handles} of {cfg.lost_handles} arrive"
        )

        # Groups of their own for what ends in a timeout: afterwards their connections are unusable.
        lost = dist.new_group(backend="gloo", timeout=timedelta(seconds=cfg.timeout_s))
        once = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
        wait_twice(cfg, once)
        receiver_comes_later(lost, mail)
        if group.rank == 0:
            print_in_rank_order("handle lost, receivers come later; and my second wait on a handle timed out")
        else:
            print_in_rank_order("nothing came from rank 0")


if __name__ == "__main__":
    run(main, Config())
