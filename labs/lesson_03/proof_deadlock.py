"""Everyone sends to the right before receiving from the left: a deadlock, and three ways out of it.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_03/proof_deadlock.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.comm.nccl_rules import verdict, watch_for_nccl
from shared.comm.p2p import sendrecv
from shared.runtime.errors import CourseError, waited_in_vain
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal

SEND_FIRST, RECEIVE_FIRST = ("send", "recv"), ("recv", "send")


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (1, 1_000_000)  # 4 bytes and 4 MB
    timeout_s: float = 3.0  # the default of a gloo group is 30 minutes


@dataclass(frozen=True)
class Shift:
    """One task for all ranks at once: ``outgoing`` to ``right``, ``incoming`` from ``left``, by ``mail``."""

    outgoing: torch.Tensor
    incoming: torch.Tensor
    right: int
    left: int
    mail: dist.ProcessGroup


def new_shift(numel: int, timeout_s: float) -> Shift:
    """A task in a group of its own: after a timeout the connections of a group are unusable. Collective."""
    rank, n = dist.get_rank(), dist.get_world_size()
    mail = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    outgoing = torch.full((numel,), float(rank))
    return Shift(outgoing, torch.empty(numel), (rank + 1) % n, (rank - 1) % n, mail)


def in_two_calls(task: Shift, order: tuple[str, str], begun: list[str]) -> None:
    """``send`` and ``recv``, in this order; note each in ``begun`` before it begins."""
    for call in order:
        begun.append(call)
        if call == "send":
            dist.send(task.outgoing, task.right, group=task.mail)
        else:
            dist.recv(task.incoming, task.left, group=task.mail)


def by_isend(task: Shift) -> None:
    """Start sending, receive, and wait for the sending last."""
    work = dist.isend(task.outgoing, task.right, group=task.mail)
    dist.recv(task.incoming, task.left, group=task.mail)
    work.wait()


def by_batch(task: Shift, send_first: bool) -> None:
    """Hand both over at once. ``sendrecv`` of shared.comm.p2p is these lines."""
    operations = [
        dist.P2POp(dist.isend, task.outgoing, task.right, task.mail),
        dist.P2POp(dist.irecv, task.incoming, task.left, task.mail),
    ]
    if not send_first:
        operations.reverse()
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def assert_stuck(task: Shift) -> None:
    """All ranks send first, and no rank gets as far as ``recv``."""
    begun: list[str] = []
    dist.barrier()
    try:
        in_two_calls(task, SEND_FIRST, begun)
    except RuntimeError as error:
        if not waited_in_vain(error):
            raise
    else:
        raise CourseError("expected a deadlock, but the messages arrived")
    assert begun == ["send"], f"a rank got beyond send: {begun}"


def replayed(name: str, way: Callable, task: Shift, cfg: Config) -> list[str]:
    """Let all ranks go this way over gloo, check what arrives; return what nccl's rules say to the calls."""
    task.incoming.fill_(-1.0)
    with watch_for_nccl() as log:
        way(task)
    size = 4 * max(cfg.sizes)
    if log.counts() != {"send": 1, "recv": 1} or log.bytes("send") != size:
        raise CourseError(f"{name}: one message of {size:,} bytes should have gone out: {log.calls}")
    assert_equal(name, task.incoming, torch.full_like(task.incoming, task.left), 0.0)
    by_rank: list = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, log.issued)
    return [line.split(",")[0] for line in verdict(by_rank)]


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        rank, n = group.rank, group.world_size
        for numel in cfg.sizes:
            task = new_shift(numel, cfg.timeout_s)
            assert_stuck(task)
        sizes = " and with ".join(f"{numel:,}" for numel in cfg.sizes)
        print_in_rank_order(f"stuck in send until rank {task.right} receives, with {sizes} numbers")

        ways = {
            "rank 0 receives first": lambda task: in_two_calls(
                task, RECEIVE_FIRST if rank == 0 else SEND_FIRST, []
            ),
            "even ranks send first": lambda task: in_two_calls(
                task, SEND_FIRST if rank % 2 == 0 else RECEIVE_FIRST, []
            ),
            "isend, then recv": by_isend,
            "batch, send listed first": lambda task: by_batch(task, send_first=True),
            "batch, recv listed first": lambda task: by_batch(task, send_first=False),
        }
        task = new_shift(max(cfg.sizes), 20)
        waits = [f"hangs: rank {r} in send to rank {(r + 1) % n}" for r in range(n)]
        print_on_rank_0(f"{'':28}{'run on gloo':14}replayed by nccl's rules")
        for name, way in ways.items():
            found = replayed(name, way, task, cfg)
            if found != (waits if way is by_isend else []):
                raise CourseError(f"{name}: by nccl's rules, isend alone should have hung; found {found}")
            print_on_rank_0(f"{name:28}{'arrives':14}{f'{n} ranks stuck in send' if found else 'moves'}")
        incoming = torch.empty_like(task.incoming, device=group.device)
        sendrecv(task.outgoing.to(group.device), task.right, incoming, task.left)
        assert_equal("sendrecv", incoming.cpu(), torch.full_like(task.incoming, task.left), 0.0)
        print_on_rank_0(f"{'sendrecv':28}arrives")


if __name__ == "__main__":
    run(main, Config())
