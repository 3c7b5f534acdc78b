"""Three other all-reduces: the sums are right, the traffic is not a ring's, and the check notices.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_05_other_ways.py
Written by:  notebooks/05_ring_all_reduce.ipynb
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv
from shared.comm.record import Call, record
from shared.comm.ring import TrafficError, assert_ring_traffic
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    numel: int = 840  # divides by every world size up to 8


def gather_and_broadcast(x: torch.Tensor, n: int) -> None:
    """Rank 0 receives all tensors, adds them up and sends the sum to everyone."""
    if dist.get_rank() == 0:
        incoming = torch.empty_like(x)
        for other in range(1, n):
            dist.recv(incoming, other)
            x += incoming
        for other in range(1, n):
            dist.send(x, other)
    else:
        dist.send(x, 0)
        dist.recv(x, 0)


def whole_tensor_ring(x: torch.Tensor, n: int) -> None:
    """A ring in name only: whole tensors go round n - 1 times, each rank adds what passes by."""
    rank = dist.get_rank()
    passing = x.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        sendrecv(passing, (rank + 1) % n, incoming, (rank - 1) % n)
        x += incoming
        passing = incoming


def recursive_doubling(x: torch.Tensor, n: int) -> None:
    """Exchange whole tensors with partners 1, 2, 4, ... away: log2(n) rounds; n is a power of 2."""
    distance = 1
    while distance < n:
        partner = dist.get_rank() ^ distance
        incoming = torch.empty_like(x)
        sendrecv(x, partner, incoming, partner)
        x += incoming
        distance *= 2


WAYS = {
    "gather and broadcast": gather_and_broadcast,
    "whole-tensor ring": whole_tensor_ring,
    "recursive doubling": recursive_doubling,
}


def assert_rejected(way: str, sent: list[Call], whole: int, n: int) -> str:
    """The ring's check must fail for this traffic; return its complaint."""
    try:
        assert_ring_traffic(sent, whole, n)
    except TrafficError as error:
        return str(error)
    raise CourseError(f"the check took {way} over {n} ranks for a ring")


def measure(way: str, n: int, cfg: Config, group: Group) -> dict | None:
    """Run one way on the first n ranks; return what this rank sent, None if it took no part."""
    x = torch.arange(cfg.numel, dtype=torch.float64, device=group.device) * (group.rank + 1)
    expected = torch.arange(cfg.numel, dtype=torch.float64, device=group.device) * (n * (n + 1) // 2)
    row = None
    with record() as log:
        if group.rank < n:
            WAYS[way](x, n)
    if group.rank < n:
        assert_equal(way, x, expected, 0.0)
        why_no_ring = assert_rejected(way, log.of("send"), x.nbytes, n)
        row = {"sent": log.bytes("send"), "whole": x.nbytes, "why_no_ring": why_no_ring}
    dist.barrier()
    return row


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        rows: dict[str, dict] = {}
        for way in WAYS:
            for n in range(2, group.world_size + 1):
                if way == "recursive doubling" and n & (n - 1):
                    continue
                row = measure(way, n, cfg, group)
                rows.setdefault(way, {})[n] = row
                if row:
                    multiple = row["sent"] / row["whole"]
                    text = f"{way}, {n} ranks: sum right, rank 0 sent {multiple:.0f} S"
                    print_on_rank_0(f"{text}; no ring: {row['why_no_ring']}")
        record_results("lab_05_other_ways", {"ways": rows})


if __name__ == "__main__":
    run(main, Config())
