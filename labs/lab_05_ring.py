"""A ring all-reduce by hand, equal to torch's, and every byte of it counted.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_05_ring.py
Written by:  notebooks/05_ring_all_reduce.ipynb
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from shared.comm.kernel import wire_bytes
from shared.comm.p2p import sendrecv
from shared.comm.record import record
from shared.comm.ring import assert_ring_traffic
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.models import ConvNet
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    numel: int = 210_000  # divides by every world size up to 8
    tolerance: float = 1e-12  # float64; sums in another order round differently
    wire_slack: float = 0.02  # gloo's own headers, as a fraction, beside 4 KiB


def ring_all_reduce(x: torch.Tensor, n: int) -> torch.Tensor:
    """Replace ``x`` on ranks 0 .. n - 1 by the sum over those ranks. Collective among them.

    Args:
        x: one-dimensional and contiguous, of the same shape and dtype on each rank.
        n: the number of ranks in the ring.

    Each rank sends 2 (n - 1) chunks of 1 / n of ``x`` to its right neighbour.
    Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009.
    """
    rank = dist.get_rank()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.tensor_split(n)
    # Reduce-scatter: pass on what I have summed so far. At the end chunk rank + 1 is complete here.
    for step in range(n - 1):
        outgoing, target = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(target)
        sendrecv(outgoing, right, incoming, left)
        target += incoming
    # All-gather: pass on what is complete.
    for step in range(n - 1):
        outgoing, target = chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]
        sendrecv(outgoing, right, target, left)
    return x


def values_of(rank: int, cfg: Config) -> torch.Tensor:
    """What a rank brings: float64 (numel,), different on each rank and known to all."""
    return torch.randn(cfg.numel, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def reference(n: int, cfg: Config) -> torch.Tensor:
    """The sum over ranks 0 .. n - 1, by one process."""
    return torch.stack([values_of(rank, cfg) for rank in range(n)]).sum(0)


def gradient(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gradient of the summed loss of a small network over some digits, flat and in float64."""
    torch.manual_seed(0)
    model = ConvNet().double()
    F.cross_entropy(model(images.double()), labels, reduction="sum").backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def measure(n: int, cfg: Config, group: Group) -> dict:
    """Run the ring on the first n ranks; return what this rank sent, by our count and by the kernel's."""
    x = values_of(group.rank, cfg).to(group.device)
    whole = x.numel() * x.element_size()
    dist.barrier()
    before = wire_bytes()
    with record() as log:
        if group.rank < n:
            ring_all_reduce(x, n)
    dist.barrier()
    if group.rank < n:
        assert_equal(f"sum over {n} ranks", x.cpu(), reference(n, cfg), cfg.tolerance)
        assert_ring_traffic(log.of("send"), whole, n)
    sent = log.bytes("send")
    on_the_wire = None
    if before is not None and group.backend == "gloo":
        on_the_wire = wire_bytes() - before
        assert abs(on_the_wire - sent) <= cfg.wire_slack * sent + 4096, (on_the_wire, sent)
    return {"whole": whole, "sent": sent, "messages": log.count("send"), "wire": on_the_wire}


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        rows = {}
        for n in range(2, group.world_size + 1):
            rows[n] = row = measure(n, cfg, group)
            print_on_rank_0(
                f"ring of {n}: {row['messages']} messages, {row['sent']:,} bytes"
                f" = 2 x {n - 1}/{n} x {row['whole']:,}, on each rank of it"
            )

        # The same ring on what it is for: gradients of real images.
        data = load_images("digits")
        mine = slice(group.rank, None, group.world_size)
        by_ring = gradient(data.train_x[mine], data.train_y[mine]).to(group.device)
        by_torch = by_ring.clone()
        if group.world_size > 1:
            ring_all_reduce(by_ring, group.world_size)
        dist.all_reduce(by_torch)
        one_process = gradient(data.train_x, data.train_y)
        assert_equal("ring and dist.all_reduce", by_ring, by_torch, 1e-9)
        assert_equal("ring and one process", by_ring.cpu(), one_process, 1e-9)
        of_what = f"{len(one_process):,} gradients over {len(data.train_x):,} digits"
        print_on_rank_0(f"{of_what}: ring = dist.all_reduce = one process")
        record_results("lab_05_ring", {"rings": rows})


if __name__ == "__main__":
    run(main, Config())
