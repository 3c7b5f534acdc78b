"""What the ring of lab_05_ring sends, to the byte, and that none of the other ways passes for a ring.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_05/proof_traffic.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from shared.comm.kernel import wire_bytes
from shared.comm.record import Call, record
from shared.comm.ring import TrafficError, assert_ring_traffic
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.models import ConvNet
from shared.training.parity import assert_equal

from lab_05_ring import ring_all_reduce
from lesson_05.proof_other_ways import WAYS, works_with


@dataclass(frozen=True)
class Config:
    numel: int = 210_000  # divides by every world size up to 8
    tolerance: float = 1e-12  # float64; sums in another order round differently
    wire_slack: float = 0.02  # gloo's own headers, as a fraction, beside 4 KiB


def values_of(rank: int, cfg: Config) -> torch.Tensor:
    """What a rank brings: float64 (numel,), different on each rank and known to all."""
    return torch.randn(cfg.numel, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def reference(n: int, cfg: Config) -> torch.Tensor:
    """The sum over ranks 0 .. n - 1, by one process."""
    return torch.stack([values_of(rank, cfg) for rank in range(n)]).sum(0)


def measure(
    way: str, all_reduce: Callable, n: int, pg: dist.ProcessGroup, cfg: Config, group: Group
) -> list[Call]:
    """Run an all-reduce over ``pg``, which is ranks 0 .. n - 1; return the messages that this rank sent.

    Called by all ranks: those outside of ``pg`` send nothing, and the kernel has to confirm it.
    """
    x = values_of(group.rank, cfg).to(group.device)
    dist.barrier()
    before = wire_bytes()
    with record() as log:
        if group.rank < n:
            all_reduce(x, pg)
    dist.barrier()
    if group.rank < n:
        assert_equal(f"{way}, sum over {n} ranks", x.cpu(), reference(n, cfg), cfg.tolerance)
    sent = log.bytes("send")
    if before is not None and group.backend == "gloo":
        on_the_wire = wire_bytes() - before
        off = abs(on_the_wire - sent)
        assert off <= cfg.wire_slack * sent + 4096, f"{sent:,} bytes recorded, {on_the_wire:,} left by TCP"
    return log.of("send")


def complaint(way: str, sent: list[Call], whole: int, n: int) -> str:
    """What the ring's check says about the traffic of something that is no ring."""
    try:
        assert_ring_traffic(sent, whole, n)
    except TrafficError as error:
        return str(error)
    raise CourseError(f"the check took {way} over {n} ranks for a ring")


def gradient(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gradient of the summed loss of a small network over some digits, flat and in float64."""
    torch.manual_seed(0)
    model = ConvNet().double()
    F.cross_entropy(model(images.double()), labels, reduction="sum").backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradients_of_digits(group: Group) -> None:
    """The ring on what it is for: gradients of real images, a share on each rank."""
    data = load_images("digits")
    mine = slice(group.rank, None, group.world_size)
    by_ring = gradient(data.train_x[mine], data.train_y[mine]).to(group.device)
    by_torch = by_ring.clone()
    ring_all_reduce(by_ring)
    dist.all_reduce(by_torch)
    one_process = gradient(data.train_x, data.train_y)
    assert_equal("ring and dist.all_reduce", by_ring, by_torch, 1e-9)
    assert_equal("ring and one process", by_ring.cpu(), one_process, 1e-9)
    of_what = f"{len(one_process):,} gradients over {len(data.train_x):,} digits"
    print_on_rank_0(f"{of_what}: ring = dist.all_reduce = one process")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        whole = values_of(0, cfg).nbytes
        sent: dict[str, dict[int, int]] = {"ring": {}} | {way: {} for way in WAYS}
        for n in range(2, group.world_size + 1):
            pg = dist.new_group(list(range(n)))
            calls = measure("ring", ring_all_reduce, n, pg, cfg, group)
            sent["ring"][n] = sum(call.bytes for call in calls)
            if group.rank < n:
                assert_ring_traffic(calls, whole, n)
            is_last = n == group.world_size
            if is_last:
                print_on_rank_0(
                    f"ring of {n}: {len(calls)} messages, {sent['ring'][n]:,} bytes"
                    f" = 2 x {n - 1}/{n} x {whole:,}, on each rank of it"
                )
            for way, all_reduce in WAYS.items():
                as_a_ring = way == "halving and doubling" and n == 2  # the same two messages
                if works_with(way, n) and not as_a_ring:
                    calls = measure(way, all_reduce, n, pg, cfg, group)
                    sent[way][n] = sum(call.bytes for call in calls)
                    if group.rank < n:
                        why = complaint(way, calls, whole, n)
                        multiple = sent[way][n] / whole
                        if is_last:
                            print_on_rank_0(f"{way}, {n} ranks: rank 0 sent {multiple:g} S; no ring: {why}")
        gradients_of_digits(group)
        record_results("05_traffic", {"whole": whole, "sent": sent})


if __name__ == "__main__":
    run(main, Config())
