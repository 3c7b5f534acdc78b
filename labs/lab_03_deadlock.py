"""Everyone sends to the right before receiving from the left: a deadlock, and three ways out of it.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_03_deadlock.py
Written by:  notebooks/03_point_to_point.ipynb
"""

import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.comm.nccl_rules import verdict, watch_for_nccl
from shared.comm.p2p import sendrecv
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    numel: int = 2_000_000  # 8 MB, so that a message takes long enough to be drawn
    timeout_s: float = 3.0  # the default of a gloo group is 30 minutes


@dataclass(frozen=True)
class Shift:
    """One task for all ranks at once: ``outgoing`` to ``right``, ``incoming`` from ``left``, by ``mail``."""

    outgoing: torch.Tensor
    incoming: torch.Tensor
    right: int
    left: int
    mail: dist.ProcessGroup


def in_two_calls(task: Shift, send_first: bool, events: list[dict]) -> None:
    """``send`` and ``recv``, in this order or the other; note when each began and ended."""
    order = ["send", "recv"] if send_first else ["recv", "send"]
    for what in order:
        peer = task.right if what == "send" else task.left
        event = {"what": what, "peer": peer, "begin": time.monotonic()}
        try:
            if what == "send":
                dist.send(task.outgoing, peer, group=task.mail)
            else:
                dist.recv(task.incoming, peer, group=task.mail)
        finally:
            events.append(event | {"end": time.monotonic()})


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


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        rank, n = group.rank, group.world_size
        right, left = (rank + 1) % n, (rank - 1) % n
        events: dict[str, list[dict]] = {}
        stuck_there: dict[str, list[str]] = {}

        def shift(timeout_s: float) -> Shift:
            mail = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            return Shift(torch.full((cfg.numel,), float(rank)), torch.empty(cfg.numel), right, left, mail)

        # A group of its own for the deadlock: after a timeout its connections are unusable.
        stuck = shift(cfg.timeout_s)
        stuck_in: list[dict] = []
        events["everyone sends first"] = stuck_in
        dist.barrier()
        try:
            in_two_calls(stuck, True, stuck_in)
        except RuntimeError as error:
            # The first rank to give up closes its connections, and the others may hear of that instead.
            if not any(text in str(error) for text in ("Timed out waiting", "Connection", "closed")):
                raise
        else:
            raise CourseError("there was to be a deadlock, but the messages arrived")
        assert [event["what"] for event in stuck_in] == ["send"], "nobody got as far as recv"
        print_in_rank_order(f"stuck in send: I waited for rank {right} to receive")

        task = shift(20)
        expected = torch.full((cfg.numel,), float(left))
        ways = {
            "rank 0 receives first": lambda log: in_two_calls(task, rank != 0, log),
            "even ranks send first": lambda log: in_two_calls(task, rank % 2 == 0, log),
            "isend": lambda log: by_isend(task),
            "batch, send listed first": lambda log: by_batch(task, send_first=True),
            "batch, recv listed first": lambda log: by_batch(task, send_first=False),
        }
        for name, way in ways.items():
            task.incoming.fill_(-1.0)
            with watch_for_nccl() as log:
                way([])
            if log.counts() != {"send": 1, "recv": 1} or log.bytes("send") != 4 * cfg.numel:
                raise CourseError(
                    f"{name}: one message of {4 * cfg.numel:,} bytes was to go out: {log.calls}"
                )
            assert_equal(name, task.incoming, expected, 0.0)
            by_rank: list = [None] * n
            dist.all_gather_object(by_rank, log.issued)
            stuck_there[name] = [line.split(",")[0] for line in verdict(by_rank)]
            on_nccl = "the messages move" if not stuck_there[name] else "; ".join(stuck_there[name])
            print_on_rank_0(f"{name}: each rank has its left neighbour's tensor. On nccl: {on_nccl}")
            events[name] = []
            dist.barrier()
            way(events[name])  # once more without the record, for the chart
        waits = [f"hangs: rank {r} in send to rank {(r + 1) % n}" for r in range(n)]
        if stuck_there != {name: waits if name == "isend" else [] for name in ways}:
            raise CourseError(f"nccl was to wait in the second cure alone: {stuck_there}")
        incoming = torch.empty(cfg.numel, device=group.device)
        sendrecv(task.outgoing.to(group.device), right, incoming, left)
        assert_equal("sendrecv", incoming.cpu(), expected, 0.0)
        print_on_rank_0("sendrecv: the same")
        record_results("lab_03_deadlock", {"events": events})


if __name__ == "__main__":
    run(main, Config())
