"""Data parallel training with one line wrong: nothing fails, and only some checks notice.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_06/proof_faults.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.runtime.errors import CourseError, ParityError, waited_in_vain
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters

from lab_06_by_hand import average_gradients, broadcast_parameters


@dataclass(frozen=True)
class Config:
    seed: int = 5
    steps: int = 12
    global_batch: int = 840  # divides by every world size up to 8
    learning_rate: float = 0.05
    momentum: float = 0.5
    tolerance: float = 1e-12  # float64
    per_rank: int = 64  # own_loops: images per rank; rank 0 has one more
    loader_batch: int = 16
    timeout_s: float = 3.0  # the default of init_process_group is 30 minutes


# fault: (are the replicas equal to each other, are they equal to one process)
EXPECTED = {
    "nothing": (True, True),
    "no broadcast": (False, False),
    "no averaging": (False, False),
    "a sum, no mean": (True, False),
    "no partition": (True, True),
}


def make(cfg: Config, seed: int, learning_rate: float, device: torch.device) -> tuple:
    """A model from this seed, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Linear(64, 10, dtype=torch.float64, device=device)
    return model, torch.optim.SGD(model.parameters(), learning_rate, cfg.momentum)


def batches(cfg: Config, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The global batches, the same on each rank: images float64 (840, 64), labels (840,)."""
    data = load_images("digits")
    x, y = data.train_x.flatten(1).double().to(device), data.train_y.to(device)
    pairs = []
    for step in range(cfg.steps):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))
        chosen = order[: cfg.global_batch]
        pairs.append((x[chosen], y[chosen]))
    return pairs


def reference(cfg: Config, learning_rate: float, device: torch.device) -> nn.Module:
    """One process that trains on whole batches, from the model that rank 0's seed gives."""
    model, optimizer = make(cfg, cfg.seed, learning_rate, device)
    for x, y in batches(cfg, device):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def sum_gradients(model: nn.Module) -> None:
    """``average_gradients`` without its division. Collective."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def train(fault: str, cfg: Config, group: Group) -> tuple[nn.Module, int]:
    """Train with one line wrong. Returns the model, and images per step."""
    model, optimizer = make(cfg, cfg.seed + group.rank, cfg.learning_rate, group.device)
    if fault != "no broadcast":
        broadcast_parameters(model)
    mine = slice(group.rank, None, group.world_size)
    if fault == "no partition":
        mine = slice(None)
    for x, y in batches(cfg, group.device):
        optimizer.zero_grad()
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        if fault == "a sum, no mean":
            sum_gradients(model)
        elif fault != "no averaging":
            average_gradients(model)
        optimizer.step()
    return model, len(x[mine])


def passes(check: Callable, *args) -> bool:
    """Whether a parity check is green. Collective if the check is."""
    try:
        check(*args)
    except ParityError:
        return False
    return True


def try_fault(fault: str, truth: nn.Module, cfg: Config, group: Group) -> None:
    """Train with this fault, and report what the two checks say. Collective.

    Raises:
        CourseError: the checks, or the number of images per rank, are not what this lab shows.
    """
    model, images = train(fault, cfg, group)
    ranks_equal = passes(assert_same_on_every_rank, fault, parameters(model))
    equals_truth = passes(assert_all_equal, fault, parameters(model), parameters(truth), cfg.tolerance)
    on_all_ranks = torch.tensor([equals_truth], dtype=torch.int64, device=group.device)
    dist.all_reduce(on_all_ranks, op=dist.ReduceOp.MIN)
    verdicts = (ranks_equal, bool(on_all_ranks.item()))
    if verdicts != EXPECTED[fault]:
        raise CourseError(f"{fault}: the checks say {verdicts}, which is not what this lab shows")
    expected_images = cfg.global_batch if fault == "no partition" else cfg.global_batch // group.world_size
    if images != expected_images:
        raise CourseError(f"{fault}: {images} images per rank, expected {expected_images}")
    words = ["green" if passed else "red" for passed in verdicts]
    print_on_rank_0(f"{fault:16}{words[0]:14}{words[1]:14}{images}")
    if fault == "a sum, no mean":
        faster = reference(cfg, group.world_size * cfg.learning_rate, group.device)
        assert_all_equal(fault, parameters(model), parameters(faster), cfg.tolerance)


@dataclass
class OwnLoop:
    """How far a rank came: batches averaged, how it ended, and what rank 0 and rank 1 averaged together.

    ``together`` holds ((epoch, batch) on rank 0, (epoch, batch) on rank 1) of each step.
    """

    batches: int
    together: list[tuple[tuple[int, int], tuple[int, int]]]
    end: str


def own_loop(cfg: Config, group: Group) -> OwnLoop:
    """Two epochs, in which each rank loops over its own part, as ``for x, y in loader`` does.

    Rank 0 has one image more, and so one batch more. In place of a gradient each rank averages a note of
    which batch it is at, so that the result tells what was averaged with what. Collective, until it breaks.
    """
    images = torch.arange(cfg.per_rank * group.world_size + 1)[group.rank :: group.world_size]
    loader = images.split(cfg.loader_batch)
    # A group of its own: after a timeout its connections cannot be used any more.
    own = dist.new_group(timeout=timedelta(seconds=cfg.timeout_s), backend="gloo")
    seen = OwnLoop(len(loader), [], "finished")
    try:
        for epoch in range(2):
            for batch, _ in enumerate(loader):
                notes = torch.zeros(group.world_size, 2, dtype=torch.int64)
                notes[group.rank] = torch.tensor([epoch, batch])
                dist.all_reduce(notes, group=own)  # stands for average_gradients
                seen.together.append((tuple(notes[0].tolist()), tuple(notes[1].tolist())))
    except RuntimeError as error:
        if not waited_in_vain(error):
            raise
        seen.end = "timed out"
    return seen


def check_own_loop(seen: OwnLoop, cfg: Config, group: Group) -> None:
    """Raises ``CourseError`` unless the extra batch was averaged with the next epoch, without an error."""
    shorter = cfg.per_rank // cfg.loader_batch
    longer = shorter + 1
    together = []
    for step in range(2 * shorter):
        together.append((divmod(step, longer), divmod(step, shorter)))
    end = "finished" if group.rank else "timed out"
    if seen != OwnLoop(shorter if group.rank else longer, together, end):
        raise CourseError(f"own loops: {seen}, which is not what this lab shows")


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        truth = reference(cfg, cfg.learning_rate, group.device)
        print_on_rank_0(f"{'fault':16}{'ranks equal':14}{'one process':14}images per rank")
        for fault in EXPECTED:
            try_fault(fault, truth, cfg, group)

        seen = own_loop(cfg, group)
        check_own_loop(seen, cfg, group)
        print_in_rank_order(
            f"{seen.batches} batches per epoch: {len(seen.together)} steps in two epochs, then {seen.end}"
        )
        for on_rank_0, on_rank_1 in seen.together:
            if on_rank_0 != on_rank_1:
                print_on_rank_0(
                    f"rank 0 in epoch {on_rank_0[0]}, batch {on_rank_0[1]}: averaged with "
                    f"epoch {on_rank_1[0]}, batch {on_rank_1[1]} of rank 1"
                )


if __name__ == "__main__":
    run(main, Config())
