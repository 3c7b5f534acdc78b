"""Check of exercise 13. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py

A kill is simulated: ``run.do`` raises on all ranks at once, and a freshly loaded answer gets a new run.
"""

import importlib.util
import math
import tempfile
from pathlib import Path
from types import ModuleType

import torch._dynamo  # the first optimizer would do it, in seconds that a collective may not have
import torch.distributed as dist
import torch.nn.functional as F

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.data import load_images

STEPS = 120
COST = 2
BUDGET = 190
KILLS = (36, 51, 66, 90, 119)  # steps since the very beginning, lost ones included
OTHER = (10_000, 20, 5.0)  # steps, kills and cost of a larger run
BATCH = 48


class Killed(BaseException):
    """No ``except Exception`` of an answer gets in its way; nothing gets in SIGKILL's way."""


class Ledger:
    """What outlives the kills: how many steps and saves there were, and the unbroken run to compare with."""

    def __init__(self) -> None:
        self.clock = self.saves = 0
        self.unbroken: list[torch.Tensor] = []


class Run:
    def __init__(self, ledger: Ledger, group: Group, watched: bool = True) -> None:
        torch.manual_seed(13)
        self.steps = STEPS
        self._ledger = ledger
        self._group = group
        self._watched = watched
        self.done = 0
        self.model = torch.nn.Linear(64, 10).double().to(group.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        x, y = load_images("digits")[:2]
        self._x = x.flatten(1).double().to(group.device)
        self._y = y.to(group.device)

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights, and momentum: zeros before the first step."""
        weights = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        buffers = [self.optimizer.state[p].get("momentum_buffer") for p in self.model.parameters()]
        missing = any(buffer is None for buffer in buffers)
        return weights, torch.zeros_like(weights) if missing else torch.cat([b.flatten() for b in buffers])

    def do(self, step: int) -> None:
        """One step of training on all ranks; the images follow from ``step`` alone."""
        if self._watched:
            self._look(step)
        batch = torch.randint(len(self._x), (BATCH,), generator=torch.Generator().manual_seed(step))
        mine = batch[self._group.rank :: self._group.world_size]
        self.optimizer.zero_grad()
        (F.cross_entropy(self.model(self._x[mine]), self._y[mine], reduction="sum") / BATCH).backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
        self.optimizer.step()
        self.done = step

    def _look(self, step: int) -> None:
        """Everything that can be wrong before a step; then the kill, if one is due."""
        steps = [None] * self._group.world_size
        dist.all_gather_object(steps, step)
        if len(set(steps)) > 1:
            raise Wrong(f"the ranks do different steps at the same time: {steps}")
        ledger = self._ledger
        (weights, momentum) = self.state()
        if not 1 <= step <= STEPS:
            raise Wrong(f"there is no step {step}, only 1 to {STEPS}")
        if step == 1 and not self.done and ledger.saves and ledger.clock:
            raise Wrong("after a kill the run starts at step 1 again, although there is a snapshot")
        fits = [s for s, (w, _) in enumerate(ledger.unbroken) if (w - weights).abs().max() < 1e-12]
        if fits != [step - 1]:
            found = f"those after step {fits[0]}" if fits else "those of no step at all"
            raise Wrong(f"step {step} wants the weights after step {step - 1}, but gets {found}")
        if (momentum - ledger.unbroken[step - 1][1]).abs().max() > 1e-12:
            raise Wrong(f"step {step} has the right weights, but not the momentum after step {step - 1}")
        ledger.clock += 1
        if ledger.clock in KILLS:
            raise Killed


def fresh(answer: ModuleType, ledger: Ledger, group: Group) -> ModuleType:
    """The answer as a new process would load it, with its saves counted."""
    spec = importlib.util.spec_from_file_location(answer.__name__, answer.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    save = module.save_atomically

    def counted(content: dict, path: Path) -> None:
        if group.rank > 0:
            raise Wrong(f"rank {group.rank} saves, too; several ranks would write the same file")
        ledger.saves += 1
        save(content, path)

    module.save_atomically = counted
    return module


def restart_until_done(answer: ModuleType, path: Path, interval: int, ledger: Ledger, group: Group) -> Run:
    while True:
        run = Run(ledger, group)
        try:
            fresh(answer, ledger, group).train(run, path, interval, group)
            return run
        except Killed:
            # As with a restart, all are gone before the first comes back. Rank 0 has counted the saves.
            saves = [ledger.saves]
            dist.broadcast_object_list(saves)
            ledger.saves = saves[0]


def waste(steps: int, kills: int, cost: float, interval: float) -> float:
    """Expected part of the time that goes into saves and lost steps: Young's model."""
    return cost / interval + interval * kills / (2 * steps)


def verify(answer: ModuleType, group: Group) -> str:
    interval = answer.choose_interval(STEPS, len(KILLS), COST)
    larger = answer.choose_interval(*OTHER)
    best = math.sqrt(2 * OTHER[2] * OTHER[0] / OTHER[1])
    if not larger >= 1 or waste(*OTHER, larger) > 1.1 * waste(*OTHER, best):
        raise Wrong(
            f"{larger} is no good interval for {OTHER[0]:,} steps, {OTHER[1]} kills, saves of {OTHER[2]}"
        )
    ledger = Ledger()
    unbroken = Run(ledger, group, watched=False)
    ledger.unbroken.append(unbroken.state())
    for step in range(1, STEPS + 1):
        unbroken.do(step)
        ledger.unbroken.append(unbroken.state())
    with tempfile.TemporaryDirectory() as folder:
        where = [folder]
        dist.broadcast_object_list(where)
        run = restart_until_done(answer, Path(where[0]) / "snapshot.pt", interval, ledger, group)
    if run.done != STEPS or (run.state()[0] - ledger.unbroken[-1][0]).abs().max() > 1e-12:
        raise Wrong(f"train returns after step {run.done}, and not with the weights after step {STEPS}")
    price = ledger.clock + COST * ledger.saves
    if group.rank == 0 and price > BUDGET:
        lost = ledger.clock - STEPS
        saves = f"{ledger.saves} saves x {COST}"
        raise Wrong(f"{STEPS} steps + {lost} lost + {saves} = {price} is over the budget of {BUDGET}")
    kills = sum(time <= ledger.clock for time in KILLS)
    return f"{kills} kills, equal at the end, {STEPS} steps cost {price}. Well done."


if __name__ == "__main__":
    check_exercise("13_five_kills", verify)
