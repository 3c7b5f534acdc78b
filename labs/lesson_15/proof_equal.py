"""The stages of lab_15_stages equal one process, and no process ever holds more than its own.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_15/proof_equal.py
"""

import resource
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, gradients, parameters

from lab_15_stages import BLOCKS, ROWS, WIDTH, build, fill, forward_backward, stage_of


@dataclass(frozen=True)
class Config:
    steps: int = 5
    learning_rate: float = 0.01
    tolerance: float = 1e-12  # float64
    large: int = 2048  # width of a model of 134 MB
    slack: int = 32 * 1024 * 1024  # bytes that the process may need for other things


def reference(cfg: Config, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The whole model in one process."""
    model = build().to(device)
    fill(model, 0)
    model.double()
    return model, torch.optim.Adam(model.parameters(), cfg.learning_rate)


def bytes_held(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Parameters, gradients and Adam's state."""
    tensors = [*model.parameters(), *(p.grad for p in model.parameters())]
    tensors += [t for p in model.parameters() for t in optimizer.state[p].values() if t.dim()]
    return sum(tensor.nbytes for tensor in tensors)


def check_parity(cfg: Config, group: Group) -> None:
    """Train the stages, and on each rank the whole model beside them. Collective.

    Raises:
        ParityError: after some step, a gradient or a parameter is not that of one process.
        CourseError: something else was sent than activations and their gradients, or the stages together
            hold something else than one process.
    """
    alone, alone_optimizer = reference(cfg, group.device)
    torch.use_deterministic_algorithms(True)  # fills memory that nobody has written with NaN
    stage = stage_of(group.rank, group.world_size, group.device).double()
    torch.use_deterministic_algorithms(False)
    optimizer = torch.optim.Adam(stage.parameters(), cfg.learning_rate)
    own = [name for name, _ in stage.named_parameters()]  # a slice keeps the names: "4.0.weight"
    data = torch.Generator().manual_seed(0)
    for _ in range(cfg.steps):
        x = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=data).to(group.device)
        labels = x[:, :4].argmax(1)
        optimizer.zero_grad()
        with record() as log:
            forward_backward(stage, x, labels)
        optimizer.step()
        alone_optimizer.zero_grad()
        F.cross_entropy(alone(x), labels).backward()
        alone_optimizer.step()
        for what, of in (("gradient", gradients), ("parameter", parameters)):
            theirs = [(name, tensor) for name, tensor in of(alone) if name in own]
            assert_all_equal(what, of(stage), theirs, cfg.tolerance)
    neighbours = (group.rank > 0) + (group.rank < group.world_size - 1)
    sent = log.bytes("send") if neighbours else 0
    if sent != neighbours * x.nbytes:
        raise CourseError(f"rank {group.rank} sent {sent:,} bytes to {neighbours} neighbours of {x.nbytes:,}")
    print_on_rank_0(f"{group.world_size} stages equal one process after each of {cfg.steps} steps")

    held = bytes_held(stage, optimizer)
    print_in_rank_order(f"holds {held:,} bytes with gradients and Adam's state, sends {sent:,} in a step")
    together = torch.tensor(held, device=group.device)
    dist.all_reduce(together)
    whole = bytes_held(alone, alone_optimizer)
    if together != whole:
        raise CourseError(f"the stages hold {together:,} bytes, one process {whole:,}")
    print_on_rank_0(f"together those of one process: {whole:,}")


def check_peak(cfg: Config, group: Group) -> None:
    """Build one stage of a large model, and see how much memory the process has ever used. Collective.

    Raises:
        CourseError: it was more than for its own blocks.
    """
    if sys.platform != "linux" or group.device.type != "cpu":
        print_on_rank_0("not measured here: Linux tells a process's peak in the memory of the CPU")
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stage = stage_of(group.rank, group.world_size, group.device, cfg.large)
    more = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    own = sum(p.nbytes for p in stage.parameters())
    if more > own + cfg.slack:
        raise CourseError(f"building {own:,} bytes of parameters took {more:,} bytes")
    whole = BLOCKS * 4 * (cfg.large * cfg.large + cfg.large)
    print_in_rank_order(f"a model of {whole / 1e6:.0f} MB: memory for this rank's {own / 1e6:.0f} MB alone")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        check_parity(cfg, group)
        check_peak(cfg, group)  # second: whatever torch loads for meta devices is there by then


if __name__ == "__main__":
    run(main, Config())
