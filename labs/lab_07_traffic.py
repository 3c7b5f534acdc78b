"""lab_07_ddp.py proved: DDP equals one process, and the bytes that each rank sends are those of a ring.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_07_traffic.py
Written by:  notebooks/07_dp_vs_ddp.ipynb (edit it there)
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from lab_07_ddp import part_of_rank, train_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.kernel import wire_bytes
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, gradients, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 5
    batch: int = 840  # divides by 1 to 8
    learning_rate: float = 0.5
    tolerance: float = 1e-12  # float64
    warm_up: int = 2  # DDP lays out its buckets anew after the first step
    counted: int = 5
    wire_slack: float = 0.02  # gloo's own headers, as a fraction, beside 2 KiB per step


def build(seed: int, cfg: Config, group: Group) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of lab_07_by_hand.py."""
    torch.manual_seed(seed)
    tied = nn.Linear(128, 128)
    twin = nn.Linear(128, 128)
    twin.weight = tied.weight
    frozen = nn.Linear(64, 128).requires_grad_(False)
    layers = (nn.BatchNorm1d(64), frozen, tied, nn.Tanh(), twin, nn.Tanh(), nn.Linear(128, 10))
    net = nn.Sequential(*layers).double().eval().to(group.device)
    return net, torch.optim.SGD(net.parameters(), cfg.learning_rate, momentum=0.9)


def reference(cfg: Config, group: Group) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One process starts as DataParallel did: from seed 0."""
    return build(0, cfg, group)


def check_parity(x: torch.Tensor, y: torch.Tensor, cfg: Config, group: Group) -> nn.Module:
    """Train with DDP beside one process, and return the model that was trained. Collective.

    Raises:
        ParityError: after some step, a gradient or a parameter is not that of one process.
    """
    alone, alone_optimizer = reference(cfg, group)
    net, optimizer = build(group.rank, cfg, group)  # another seed on each rank
    ddp = DistributedDataParallel(net)
    own_x = part_of_rank(x, group.rank, group.world_size)
    own_y = part_of_rank(y, group.rank, group.world_size)
    if len(own_x) * group.world_size != len(x):  # parity would hold if each rank had the whole batch
        raise CourseError(f"a rank has {len(own_x)} of {len(x)} images, which is not its part")
    for _ in range(cfg.steps):
        train_step(ddp, optimizer, own_x, own_y)
        train_step(alone, alone_optimizer, x, y)
        assert_all_equal("gradient", gradients(ddp), gradients(alone), cfg.tolerance)
        assert_all_equal("parameter", parameters(ddp), parameters(alone), cfg.tolerance)
    print_on_rank_0(f"DDP on {group.world_size} ranks equals one process after each of {cfg.steps} steps")
    return net


def check_device_ids(net: nn.Module) -> None:
    """DDP drives one device for each process."""
    try:
        DistributedDataParallel(net, device_ids=[0, 1])
        refused = "it was accepted"
    except ValueError as error:
        refused = str(error)
    if refused != "device_ids can only be None or contain a single element.":
        raise CourseError(f"DDP with two devices should be refused, not: {refused}")
    print_on_rank_0(f"DDP with device_ids=[0, 1]: {refused}")


def bytes_sent(n: int, x: torch.Tensor, y: torch.Tensor, cfg: Config, group: Group) -> float | None:
    """Bytes per step that this rank's sockets send while ranks 0 .. n - 1 train. Collective.

    None if Linux does not know, or this rank takes no part.

    Raises:
        CourseError: in a step DDP communicates something else than all gradients and all buffers once, or
            the bytes sent are not those of a ring all-reduce of the gradients (lesson 05).
    """
    members = dist.new_group(list(range(n)))
    takes_part = group.rank < n
    if takes_part:
        net, optimizer = build(group.rank, cfg, group)
        ddp = DistributedDataParallel(net, process_group=members)
        own_x = part_of_rank(x, group.rank, n)
        own_y = part_of_rank(y, group.rank, n)
        for _ in range(cfg.warm_up):
            train_step(ddp, optimizer, own_x, own_y)
    dist.barrier()
    before = wire_bytes()
    dist.barrier()  # nobody sends before all have read
    if takes_part:
        with record() as log:
            for _ in range(cfg.counted):
                train_step(ddp, optimizer, own_x, own_y)
    dist.barrier()
    after = wire_bytes()
    if not takes_part:
        return None
    whole = sum(p.nbytes for p in net.parameters() if p.requires_grad)
    buffers = sum(b.nbytes for b in net.buffers())
    expected = {"all_reduce": cfg.counted * whole, "broadcast": cfg.counted * buffers}
    handed_in = {op: log.bytes(op) for op in log.counts()}
    if handed_in != expected:
        raise CourseError(f"bytes handed to collectives by {n} ranks: {handed_in}, expected {expected}")
    if before is None or group.backend != "gloo":
        return None
    sent = (after - before) / cfg.counted
    ring = 2 * (n - 1) / n * whole
    if abs(sent - ring) > cfg.wire_slack * ring + 2048:
        raise CourseError(f"{n} ranks, rank {group.rank} sent {sent:,.0f} bytes per step, a ring {ring:,.0f}")
    return sent


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        data = load_images("digits")
        x = data.train_x[: cfg.batch].flatten(1).double().to(group.device)
        y = data.train_y[: cfg.batch].to(group.device)
        net = check_parity(x, y, cfg, group)
        check_device_ids(net)
        sent = {}
        for n in range(1, group.world_size + 1):
            sent[n] = bytes_sent(n, x, y, cfg, group)
        trainable = sum(p.nbytes for p in net.parameters() if p.requires_grad)
        seen = "was not counted" if sent[group.world_size] is None else "was what a ring sends"
        print_in_rank_order(f"what left this process, with up to {group.world_size} ranks at work, {seen}")
        values = sum(p.sum().item() for p in net.parameters())
        record_results("lab_07_traffic", {"sent": sent, "gradients": trainable, "values": values})


if __name__ == "__main__":
    run(main, Config())
