"""Save a run, or resume it and compare: under DDP, FSDP2, pipeline, expert and tensor parallelism.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_11/parallelisms.py stages FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError

from lab_11_checkpointing import Checkpoints, Refused
from lab_13_stopping import run_rank

LAYERS = 4
WIDTH = 8
LEARNING_RATE = 0.003  # not the optimizer's own: it has to come from the checkpoint


class Numbers:
    """A generator of each rank's own, for the script's ``more``."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def state_dict(self) -> dict:
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.generator.set_state(state["state"])


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def stages() -> nn.ModuleDict:
    """This rank's layers, by their numbers in the whole model."""
    first, last = (LAYERS * r // dist.get_world_size() for r in (dist.get_rank(), dist.get_rank() + 1))
    return nn.ModuleDict({str(n): layer for n, layer in enumerate(layers()) if first <= n < last})


def experts() -> nn.ModuleDict:
    """A router, which all ranks have, and this rank's experts, by their numbers among all."""
    mine = list(layers())[dist.get_rank() :: dist.get_world_size()]
    numbers = range(LAYERS)[dist.get_rank() :: dist.get_world_size()]
    parts = {f"expert {n}": expert for n, expert in zip(numbers, mine, strict=True)}
    return nn.ModuleDict({"router": nn.Linear(WIDTH, LAYERS), **parts})


def nameless() -> nn.ModuleDict:
    """An expert of the same name on each rank, with values of its own."""
    torch.manual_seed(dist.get_rank())
    return nn.ModuleDict({"expert": nn.Linear(WIDTH, WIDTH)})


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {str(n): RowwiseParallel() if n % 2 else ColwiseParallel() for n in range(LAYERS)}
    return parallelize_module(layers(), mesh, plan)


def sharded() -> nn.Module:
    model = layers()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


BUILD = {
    "ddp": lambda: DistributedDataParallel(layers()),
    "fsdp2": sharded,
    "stages": stages,
    "experts": experts,
    "tensor parallel": tensor_parallel,
    "nameless": nameless,
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """The same inputs on all ranks, so that what all ranks have stays equal. Parts learn by themselves."""
    parts = list(model.values()) if isinstance(model, nn.ModuleDict) else [model]
    for _ in range(steps):
        for part in parts:
            part(torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def values_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor | float]:
    """Whole parameters, averages and rates of all ranks, by name. Collective."""

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()

    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    mine = {}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("module.")
        mine[name] = whole(parameter)
        mine[f"average of {name}"] = whole(optimizer.state[parameter]["exp_avg"])
        mine[f"rate of {name}"] = torch.tensor(rates[parameter])
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    return {name: value for part in gathered for name, value in part.items()}


def main(kind: str, folder: Path) -> int:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = BUILD[kind]()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}])
    numbers = Numbers(100 * dist.get_rank() + 7)
    more = {"numbers": numbers, "rate": torch.optim.lr_scheduler.StepLR(optimizer, 1, 1.0)}
    checkpoints = Checkpoints(folder, {}, dist.new_group(backend="gloo"), model, optimizer, more)
    truth = folder / "truth.pt"
    if checkpoints.resume():
        expected = torch.load(truth)
        found = values_of(model, optimizer)
        if found.keys() != expected["values"].keys():
            raise CourseError(f"other names: {found.keys() ^ expected['values'].keys()}")
        for name, value in found.items():
            if not torch.equal(value, expected["values"][name]):
                raise CourseError(f"{name} is not what was saved")
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, int(torch.randint(1000, (), generator=numbers.generator)))
        own = told == expected["numbers"]
        train(model, optimizer, 1)
        what = f"resumed, all {len(found)} values equal; each rank's own numbers: {own}"
    else:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE
        train(model, optimizer, 3)
        if not checkpoints.finish(3):
            return 1
        values = values_of(model, optimizer)
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, int(torch.randint(1000, (), generator=numbers.generator)))
        if dist.get_rank() == 0:
            torch.save({"values": values, "numbers": told}, truth)
        what = "saved"
    if dist.get_rank() == 0:
        print(f"{kind}, {dist.get_world_size()} ranks: {what}")
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(lambda: main(sys.argv[1], Path(sys.argv[2])), (Refused,)))
