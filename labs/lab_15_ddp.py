"""DDP over the model of lab_15_toy: equal to one process, and which arguments DDP then refuses.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_15_ddp.py
Written by:  notebooks/15_model_parallel.ipynb
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_15_toy import TwoDeviceModel
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shared.lesson_15.two_devices import TwoDevices
from shared.runtime.errors import CourseError
from shared.runtime.group import read_environment
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 6
    batch: int = 840  # of all ranks; divides by 1 to 8
    learning_rate: float = 0.5
    tolerance: float = 1e-12  # float64


def setup() -> tuple[int, int, TwoDevices]:
    """Join the process group; return rank, world size and this process's two devices.

    gloo on GPUs as well: a group of nccl is bound to one device, and this model has two.
    """
    rank, local_rank, world_size = read_environment()
    devices = TwoDevices.of_process(local_rank, int(os.environ["LOCAL_WORLD_SIZE"]))
    if devices.real:
        torch.cuda.set_device(devices.first)
    dist.init_process_group("gloo")
    return rank, world_size, devices


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    """One step, with or without DDP; the labels go where the output is."""
    optimizer.zero_grad()
    output = model(x)
    loss = F.cross_entropy(output, y.to(output.device))
    loss.backward()
    optimizer.step()
    return loss.item()


def build(seed: int, cfg: Config, devices: TwoDevices) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = TwoDeviceModel(devices.first, devices.second).double()
    return model, torch.optim.SGD(model.parameters(), cfg.learning_rate, momentum=0.9)


reference = build  # one process, from rank 0's seed, without DDP


def answer(construct: Callable[[], DDP]) -> str:
    """``accepted``, or the first line of the error."""
    try:
        construct()
    except ValueError as error:
        return str(error).splitlines()[0]
    return "accepted"


def arguments(devices: TwoDevices) -> dict[str, str]:
    """What DDP says to each pair of arguments, and to a model on two kinds of devices."""
    first, second = devices.numbers

    def wrap(**options) -> str:
        return answer(lambda: DDP(TwoDeviceModel(devices.first, devices.second), **options))

    said = {
        "DDP(model)": wrap(),
        "DDP(model, device_ids=[first])": wrap(device_ids=[first]),
        "DDP(model, device_ids=[first, second])": wrap(device_ids=[first, second]),
        "DDP(model, output_device=second)": wrap(output_device=second),
        "DDP(model, output_device=0)": wrap(output_device=0),
    }
    half = nn.Sequential(nn.Linear(4, 4, device=devices.first), nn.Linear(4, 4, device="meta"))
    said["DDP(a model on two kinds of devices)"] = answer(lambda: DDP(half))
    one_device = nn.Linear(4, 4, device=devices.first)
    said["DDP(a model on one device, device_ids=[first])"] = answer(lambda: DDP(one_device, [first]))
    return said


def check(said: dict[str, str], on_gpus: bool) -> None:
    expected = ["accepted", "DistributedDataParallel device_ids and output_device arguments only work with "]
    expected += ["device_ids can only be None or contain a single element.", expected[1], "accepted"]
    expected += ["DistributedDataParallel's input module must be on the same type of devices"]
    expected.append("accepted" if on_gpus else expected[1])
    for (what, text), start in zip(said.items(), expected, strict=True):
        if not text.startswith(start):
            raise CourseError(f"{what}: {text}")


def main(cfg: Config) -> None:
    rank, world_size, devices = setup()
    alone, alone_optimizer = reference(0, cfg, devices)
    model, optimizer = build(rank, cfg, devices)  # another model on each rank
    ddp = DDP(model)  # no device_ids, no output_device; it makes the ranks equal
    assert ddp.device_ids is None and ddp.output_device is None
    print_in_rank_order(f"{devices}")
    owners: list = [None] * world_size
    dist.all_gather_object(owners, (os.environ["GROUP_RANK"], *devices.numbers))
    used = [(node, number) for node, *numbers in owners for number in numbers]
    assert len(set(used)) == 2 * world_size, "two processes share a device"

    data = load_images("digits")
    x = data.train_x[: cfg.batch].flatten(1).double()
    y = data.train_y[: cfg.batch]
    mine = slice(rank, None, world_size)
    for step in range(cfg.steps):
        train_step(ddp, optimizer, x[mine], y[mine])
        loss = train_step(alone, alone_optimizer, x, y)
        off = assert_all_equal("gradient", gradients(ddp), gradients(alone), cfg.tolerance)
        apart = assert_all_equal("parameter", parameters(ddp), parameters(alone), cfg.tolerance)
        assert_same_on_every_rank(f"step {step}", parameters(ddp))
        print_on_rank_0(
            f"step {step}: loss {loss:.4f}, differences in gradients {off:.0e}, parameters {apart:.0e}"
        )
    said = arguments(devices)
    check(said, devices.real)
    for what, text in said.items():
        print_on_rank_0(f"{what}\n    {text.split(', but')[0]}")
    record_results("lab_15_ddp", {"devices": list(devices.numbers), "said": said})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main, Config())
