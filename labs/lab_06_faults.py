"""Data parallel training with one line wrong: nothing fails, and only some checks notice.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_06_faults.py
Written by:  notebooks/06_data_parallel_by_hand.ipynb
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters


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
    orders = [torch.randperm(len(x), generator=torch.Generator().manual_seed(s)) for s in range(cfg.steps)]
    return [(x[order[: cfg.global_batch]], y[order[: cfg.global_batch]]) for order in orders]


def reference(cfg: Config, learning_rate: float, device: torch.device) -> nn.Module:
    """One process that trains on whole batches, from the model that rank 0's seed gives."""
    model, optimizer = make(cfg, cfg.seed, learning_rate, device)
    for x, y in batches(cfg, device):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def train(fault: str, cfg: Config, group: Group) -> tuple[nn.Module, list[float], int]:
    """Train with one line wrong. Returns the model, one weight from the start on, images per step."""
    model, optimizer = make(cfg, cfg.seed + group.rank, cfg.learning_rate, group.device)
    if fault != "no broadcast":
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
    mine = slice(None) if fault == "no partition" else slice(group.rank, None, group.world_size)
    watched = [model.weight[3, 20].item()]
    for x, y in batches(cfg, group.device):
        optimizer.zero_grad()
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        for parameter in model.parameters():
            if fault != "no averaging":
                dist.all_reduce(parameter.grad)
            if fault not in ("no averaging", "a sum, no mean"):
                parameter.grad /= group.world_size
        optimizer.step()
        watched.append(model.weight[3, 20].item())
    return model, watched, len(x[mine])


def passes(check: Callable, *args) -> bool:
    """Whether a parity check is green. Collective if the check is."""
    try:
        check(*args)
    except ParityError:
        return False
    return True


def own_loops(cfg: Config, group: Group) -> str:
    """Every rank loops over its own part, as ``for x, y in loader`` does; rank 0 has one image more."""
    images = torch.arange(cfg.per_rank * group.world_size + 1)[group.rank :: group.world_size]
    loader = images.split(cfg.loader_batch)
    # A group of its own: after a timeout its connections are of no more use.
    own = dist.new_group(timeout=timedelta(seconds=cfg.timeout_s), backend="gloo")
    done, end = 0, "finished"
    try:
        for _ in loader:
            dist.all_reduce(torch.ones(1), group=own)  # stands for average_gradients
            done += 1
    except RuntimeError as error:
        # The others are through. Where one of them has closed its connections, that is what is heard.
        if not any(text in str(error) for text in ("Timed out waiting", "Connection", "closed")):
            raise
        end = "gave up waiting"
    if (done, end) != (cfg.per_rank // cfg.loader_batch, "finished" if group.rank else "gave up waiting"):
        raise CourseError(f"{done} steps done, then {end}, which is not what this lab shows")
    return f"{len(images)} images, {len(loader)} batches: {done} steps done, then {end}"


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        truth = reference(cfg, cfg.learning_rate, group.device)
        rows = {}
        print_on_rank_0(f"{'fault':16}{'ranks equal':14}{'one process':14}images per rank")
        for fault, expected in EXPECTED.items():
            model, watched, images = train(fault, cfg, group)
            same = passes(assert_same_on_every_rank, fault, parameters(model))
            right = passes(assert_all_equal, fault, parameters(model), parameters(truth), cfg.tolerance)
            on_all = torch.tensor([right], dtype=torch.int64, device=group.device)
            dist.all_reduce(on_all, op=dist.ReduceOp.MIN)
            found = (same, bool(on_all.item()))
            if found != expected:
                raise CourseError(f"{fault}: the checks say {found}, which is not what this lab shows")
            words = ["green" if passed else "red" for passed in found]
            print_on_rank_0(f"{fault:16}{words[0]:14}{words[1]:14}{images}")
            rows[fault] = {"images": images, "watched": watched}
            if fault == "a sum, no mean":
                faster = reference(cfg, group.world_size * cfg.learning_rate, group.device)
                assert_all_equal(fault, parameters(model), parameters(faster), cfg.tolerance)
        print_in_rank_order(own_loops(cfg, group))
        record_results("lab_06_faults", rows)


if __name__ == "__main__":
    run(main, Config())
