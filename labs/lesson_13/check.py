"""Check of exercise 13. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py

A kill is simulated: ``run.do`` raises on all ranks at once, and a freshly loaded answer gets a new run.
"""

import io
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch._dynamo  # the first optimizer would do it, in seconds that a collective may not have
import torch.distributed as dist
import torch.nn.functional as F

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.runtime.loading import load_file
from shared.training import checkpoint
from shared.training.data import load_images

STEPS = 120
COST = 2
BUDGET = 190
KILLS = (36, 51, 66, 90, 119)  # steps since the very beginning, lost ones included
OTHER = (10_000, 20, 5.0)  # steps, kills and cost of a larger run
BATCH = 48
OTHER_INTERVALS = (7, 40)
ALMOST = 1.01  # how much more than the best interval a good one may waste


class Killed(BaseException):
    """No ``except Exception`` of an answer gets in its way; nothing gets in SIGKILL's way."""


class Ledger:
    """What outlives the kills: how many steps and saves there were, and the unbroken run to compare with."""

    def __init__(self, folder: Path, kills: tuple[int, ...] = KILLS) -> None:
        self.kills = kills
        self.clock = 0
        self.saves = 0
        self.unbroken: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.folder = folder
        self.files: dict[str, tuple[int, int]] = {}  # that counted saves have left in the folder

    def files_now(self) -> dict[str, tuple[int, int]]:
        """What lies in the folder, and when each file was written: a save makes a new one."""
        files = {}
        for path in self.folder.iterdir():
            status = path.stat()
            files[path.name] = (status.st_ino, status.st_mtime_ns)
        return files


class Run:
    """What an answer trains with. Unless ``watched`` is False, it looks at everything before each step."""

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
        parameters = list(self.model.parameters())
        weights = torch.cat([p.detach().flatten() for p in parameters])
        if not all("momentum_buffer" in self.optimizer.state[p] for p in parameters):
            return weights, torch.zeros_like(weights)
        buffers = [self.optimizer.state[p]["momentum_buffer"].flatten() for p in parameters]
        return weights, torch.cat(buffers)

    def do(self, step: int) -> None:
        """One step of training on all ranks; the images follow from ``step`` alone."""
        if self._watched:
            self._look(step)
        batch = torch.randint(len(self._x), (BATCH,), generator=torch.Generator().manual_seed(step))
        mine = batch[self._group.rank :: self._group.world_size]
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self._x[mine]), self._y[mine], reduction="sum") / BATCH
        loss.backward()
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
        if self._group.rank == 0 and ledger.files_now() != ledger.files:
            raise Wrong(f"before step {step} something was written without save_atomically")
        weights, momentum = self.state()
        if not 1 <= step <= STEPS:
            raise Wrong(f"there is no step {step}, only 1 to {STEPS}")
        if step == 1 and not self.done and ledger.saves and ledger.clock:
            raise Wrong("after a kill the run starts at step 1 again, although there is a snapshot")
        fits = [s for s, (w, _) in enumerate(ledger.unbroken) if (w - weights).abs().max() < 1e-12]
        if fits != [step - 1]:
            actual = f"those after step {fits[0]}" if fits else "those of no step at all"
            raise Wrong(f"step {step} wants the weights after step {step - 1}, but gets {actual}")
        if (momentum - ledger.unbroken[step - 1][1]).abs().max() > 1e-12:
            raise Wrong(f"step {step} has the right weights, but not the momentum after step {step - 1}")
        ledger.clock += 1
        if ledger.clock in ledger.kills:
            raise Killed


@contextmanager
def counted_saves(ledger: Ledger, group: Group) -> Iterator[None]:
    """Count what an answer writes, however it imports ``save_atomically``."""
    save = checkpoint.save_atomically
    write = torch.save
    may_write = False

    def save_and_count(content: dict, path: Path) -> None:
        nonlocal may_write
        if group.rank > 0:
            raise Wrong(f"rank {group.rank} saves, too; several ranks would write the same file")
        ledger.saves += 1
        may_write = True
        save(content, path)
        may_write = False
        ledger.files = ledger.files_now()

    def write_if_allowed(content: object, f: object, *args, **kwargs) -> None:
        if not may_write and not isinstance(f, io.BytesIO):  # to pickle a tensor is to save it in memory
            raise Wrong("torch.save by itself leaves half a file if a kill comes while it writes")
        write(content, f, *args, **kwargs)

    with patch.object(checkpoint, "save_atomically", save_and_count), patch("torch.save", write_if_allowed):
        yield


def restart_until_done(answer: ModuleType, interval: int, ledger: Ledger, group: Group) -> Run:
    while True:
        run = Run(ledger, group)
        try:
            with counted_saves(ledger, group):
                new = load_file(Path(answer.__file__), answer.__name__)  # as a new process loads it
                new.train(run, ledger.folder / "snapshot.pt", interval, group)
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
    if not larger >= 1 or waste(*OTHER, larger) > ALMOST * waste(*OTHER, best):
        raise Wrong(
            f"{larger} is no good interval for {OTHER[0]:,} steps, {OTHER[1]} kills, saves of {OTHER[2]}"
        )
    with tempfile.TemporaryDirectory() as name:
        where = [name]
        dist.broadcast_object_list(where)
        ledger = Ledger(Path(where[0]))
        unbroken = Run(ledger, group, watched=False)
        ledger.unbroken.append(unbroken.state())
        for step in range(1, STEPS + 1):
            unbroken.do(step)
            ledger.unbroken.append(unbroken.state())
        run = restart_until_done(answer, interval, ledger, group)
    if run.done != STEPS or (run.state()[0] - ledger.unbroken[-1][0]).abs().max() > 1e-12:
        raise Wrong(f"train returns after step {run.done}, and not with the weights after step {STEPS}")
    price = ledger.clock + COST * ledger.saves
    if group.rank == 0 and price > BUDGET:
        lost = ledger.clock - STEPS
        saves = f"{ledger.saves} saves x {COST}"
        raise Wrong(f"{STEPS} steps + {lost} lost + {saves} = {price} is over the budget of {BUDGET}")
    for interval in OTHER_INTERVALS:
        check_interval(answer, interval, ledger.unbroken, group)
    kills = sum(time <= ledger.clock for time in KILLS)
    return f"{kills} kills, equal at the end, {STEPS} steps cost {price}. Well done."


def check_interval(answer: ModuleType, interval: int, unbroken: list, group: Group) -> None:
    """Without kills ``train`` saves in the interval that it is told; it may save at the end, too."""
    with tempfile.TemporaryDirectory() as name:
        where = [name]
        dist.broadcast_object_list(where)
        ledger = Ledger(Path(where[0]), kills=())
        ledger.unbroken = unbroken
        restart_until_done(answer, interval, ledger, group)
    expected = STEPS // interval
    if group.rank == 0 and ledger.saves not in (expected, expected + 1):
        told = f"with an interval of {interval} steps train saves {ledger.saves} times in {STEPS} steps"
        raise Wrong(f"{told}, not {expected} times")


if __name__ == "__main__":
    check_exercise("13_five_kills", verify, ranks=2)
