"""5 inputs on rank 0, 6 on rank 1: an error without Join; with it an end, two averages, our own metric.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_join.py
Written by:  notebooks/12_uneven_inputs.ipynb
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    inputs: int = 5  # rank r has r more
    timeout_s: float = 5.0  # without Join
    tolerance: float = 1e-12  # float64


WAYS = {"without Join": (False, False), "with Join": (True, False), "with Join that throws": (True, True)}


class MeanLoss(Joinable):
    """The mean loss over all inputs. ``total`` is (sum of losses, inputs) of all ranks, equal on each."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.total = torch.zeros(2, dtype=torch.float64, device=device)

    def add(self, loss: float, inputs: int) -> None:
        """Collective: each rank that has inputs calls it once in each step."""
        Join.notify_join_context(self)  # "I still have inputs"; only the first in Join's list says it
        self.reduce(loss, inputs)

    def reduce(self, loss: float, inputs: int) -> None:
        now = self.total.new_tensor([loss, inputs])
        dist.all_reduce(now)
        self.total += now

    def join_hook(self, **kwargs) -> JoinHook:
        hook = JoinHook()  # does nothing by itself
        hook.main_hook = lambda: self.reduce(0.0, 0)  # for each step of the others: no loss, but an answer
        return hook

    @property
    def join_device(self) -> torch.device:
        return self.total.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        return dist.group.WORLD


def example(joined: bool, throw: bool, cfg: Config, group: Group) -> str:
    """The loop of the question: rank r has 5 + r inputs. Returns what it says at its end."""
    own = dist.new_group(timeout=timedelta(seconds=cfg.timeout_s), backend="gloo" if not joined else None)
    device = group.device if joined else torch.device("cpu")
    model = DistributedDataParallel(nn.Linear(1, 1).to(device), process_group=own)
    num_inputs = 0
    try:
        with Join([model], enable=joined, throw_on_early_termination=throw):
            for _ in range(cfg.inputs + group.rank):
                model(torch.ones(1, device=device)).sum().backward()
                num_inputs += 1
    except RuntimeError as error:
        # Which of gloo's texts is heard, depends on the moment. Join's own is said as it is.
        timed_out = f"Timed out waiting {1000 * cfg.timeout_s:.0f}ms"
        closed = "the connection is closed"
        texts = {timed_out: timed_out, "onnection": closed, "pair closure": closed, "exhausted": str(error)}
        said = next((words for text, words in texts.items() if text in str(error)), None)
        if said is None or num_inputs != cfg.inputs:
            raise
        return f"input {num_inputs + 1}: {said}"
    return f"Rank {group.rank} has exhausted all {num_inputs} of its inputs!"


def averages(divide_by_initial_world_size: bool, cfg: Config, group: Group) -> tuple[list[float], int]:
    """The gradients that DDP leaves, step by step, and how often this rank called ``dist.all_reduce``.

    The model is one weight, so the gradient is the input: rank r has 1 + r in each step.
    """
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False, dtype=torch.float64).to(group.device))
    x = torch.full((1, 1), 1.0 + group.rank, dtype=torch.float64, device=group.device)
    seen = []
    join = Join([model], divide_by_initial_world_size=divide_by_initial_world_size)
    with record() as log, join:
        for _ in range(cfg.inputs + group.rank):
            model.zero_grad()
            model(x).sum().backward()
            seen.append(model.module.weight.grad.item())
    return seen, log.count("all_reduce")


def reference(divide_by_initial_world_size: bool, cfg: Config, n: int) -> list[float]:
    """The same averages by plain arithmetic."""
    expected = []
    for step in range(cfg.inputs + n - 1):
        present = [1.0 + rank for rank in range(n) if step < cfg.inputs + rank]
        expected.append(sum(present) / (n if divide_by_initial_world_size else len(present)))
    return expected


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        n = group.world_size
        for way, (joined, throw) in WAYS.items():
            said = example(joined, throw, cfg, group)
            print_on_rank_0(f"{way}:")
            print_in_rank_order(f"  {said}")
            exhausted = f"Rank {group.rank} has exhausted all {cfg.inputs + group.rank} of its inputs!"
            if (said == exhausted) != (joined and not throw or not joined and group.rank == 0):
                raise CourseError(f"{way}: {said!r}, which is not what this lab shows")

        steps = cfg.inputs + n - 1
        found = {}
        for initial in (True, False):
            seen, calls = averages(initial, cfg, group)
            expected = reference(initial, cfg, n)
            if max(abs(a - b) for a, b in zip(seen, expected, strict=False)) > cfg.tolerance:
                raise CourseError(f"divide_by_initial_world_size={initial}: {seen}, expected {expected}")
            expected_calls = 3 * steps + 2  # DDP's bucket and Join's two in each step, Join's two at the end
            if calls != expected_calls:
                raise CourseError(f"{calls} calls of all_reduce in {steps} steps, expected {expected_calls}")
            found[str(initial)] = seen
            print_on_rank_0(
                f"divide_by_initial_world_size={initial}: averages {[round(v, 4) for v in expected]}"
            )
        print_on_rank_0(f"Join added {2 * steps + 2} all-reduces: 2 in each of {steps} steps, 2 at the end")

        metric = MeanLoss(group.device)
        with Join([metric]):
            for k in range(cfg.inputs + group.rank):
                metric.add(10.0 * group.rank + k, 1)  # rank r's k-th loss is 10 r + k
        losses = [10.0 * rank + k for rank in range(n) for k in range(cfg.inputs + rank)]
        (loss, inputs) = metric.total.tolist()
        expected = [sum(losses), len(losses)]
        if [loss, inputs] != expected:
            raise CourseError(f"the metric holds {[loss, inputs]}, expected {expected}")
        print_in_rank_order(f"our metric: {inputs:.0f} inputs, mean loss {loss / inputs:.4f}")
        record_results("lab_12_join", found)


if __name__ == "__main__":
    run(main, Config())
