"""DataParallel step by step on 1, 2, 4 and 8 simulated devices: equal to one process, every byte counted.

Run it:      python labs/lesson_07/proof_by_hand.py
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, gradients, parameters
from shared.training.simulated_devices import Link


@dataclass(frozen=True)
class Config:
    devices: tuple[int, ...] = (1, 2, 4, 8)  # how many simulated devices
    steps: int = 5
    batch: int = 840  # divides by each of them
    learning_rate: float = 0.5
    tolerance: float = 1e-12  # float64


class SimulatedDataParallel(nn.DataParallel):
    """torch's DataParallel on ``n`` simulated devices. ``forward`` is torch's own.

    It calls the four methods below and notes them in ``called``. They stand for torch's, which need GPUs, and
    copy each tensor by itself. The batch lies on device 0. ``held[device]``: bytes of the tensors there when
    forward ends, activations aside. Source: torch/nn/parallel/data_parallel.py.
    """

    def __init__(self, module: nn.Module, n: int, link: Link) -> None:
        nn.Module.__init__(self)
        self.module = module
        self.link = link
        self.dim = 0
        self.device_ids = list(range(n))
        self.output_device = 0
        self.src_device_obj = torch.device("cpu")
        self.called: list[str] = []
        self.held: list[int] = []

    def scatter(self, inputs, kwargs, device_ids):
        self.called.append("scatter")
        parts = []
        for device, chunk in enumerate(inputs[0].chunk(len(device_ids))):
            parts.append(self.link.transfer("inputs", chunk, 0, device))
        self.tensors = [[part] for part in parts]  # a part that did not move is a view of the whole batch
        return [(part,) for part in parts], [{} for _ in parts]

    def replicate(self, module, device_ids):
        self.called.append("replicate")
        replicas = []
        for device in device_ids:  # device 0 keeps the original tensors
            values = {}
            for name, parameter in module.named_parameters():
                values[name] = self.link.transfer("parameters", parameter, 0, device)
            for name, buffer in module.named_buffers():
                values[name] = self.link.transfer("buffers", buffer, 0, device)
            self.tensors[device] += values.values()
            replicas.append((copy.deepcopy(module), values))
        return replicas

    def parallel_apply(self, replicas, inputs, kwargs):
        self.called.append("parallel_apply")  # torch's starts a thread for each device
        outputs = []
        for (module, values), own_inputs in zip(replicas, inputs, strict=True):
            outputs.append(functional_call(module, values, own_inputs))
        return outputs

    def gather(self, outputs, output_device):
        self.called.append("gather")
        arrived = []
        for device, output in enumerate(outputs):
            self.tensors[device].append(output)
            arrived.append(self.link.transfer("outputs", output, device, output_device))
        whole = torch.cat(arrived)
        self.tensors[output_device].append(whole)
        self.held = [bytes_held(tensors) for tensors in self.tensors]
        return whole


def bytes_held(tensors: list[torch.Tensor]) -> int:
    """Bytes of memory that these tensors keep; what they share is counted once."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """One step, with or without a wrapper: the loss is the mean over the whole, gathered output."""
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def build(cfg: Config) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Digits (batch, 64) to scores (batch, 10), with buffers and a weight used twice.

    All parameters learn: for a frozen one torch's replicas send zeros back, ours send nothing.
    """
    torch.manual_seed(0)
    tied = nn.Linear(128, 128)
    twin = nn.Linear(128, 128)
    twin.weight = tied.weight
    layers = (nn.BatchNorm1d(64), nn.Linear(64, 128), tied, nn.Tanh(), twin, nn.Tanh(), nn.Linear(128, 10))
    net = nn.Sequential(*layers).double().eval()  # eval: batch norm's averages stay as they are
    return net, torch.optim.SGD(net.parameters(), cfg.learning_rate, momentum=0.9)


reference = build  # one process without a wrapper starts from the same parameters


def bytes_kept(net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of gradients and momentum, which lie where the parameters are: on device 0."""
    kept = [state["momentum_buffer"] for state in optimizer.state.values()]
    kept += [p.grad for p in net.parameters() if p.grad is not None]
    return sum(tensor.nbytes for tensor in kept)


def train_beside_one_process(n: int, x: torch.Tensor, y: torch.Tensor, cfg: Config) -> dict:
    """Train on ``n`` simulated devices. Returns what the first step did, and the bytes of all gradients.

    Raises:
        ParityError: after some step, a gradient or a parameter is not that of one process.
    """
    alone, alone_optimizer = reference(cfg)
    net, optimizer = build(cfg)
    model = SimulatedDataParallel(net, n, Link())
    for step in range(cfg.steps):
        train_step(alone, alone_optimizer, x, y)
        train_step(model, optimizer, x, y)
        assert_all_equal("gradient", gradients(net), gradients(alone), cfg.tolerance)
        assert_all_equal("parameter", parameters(net), parameters(alone), cfg.tolerance)
        if step == 0:
            row = {
                "called": list(model.called),
                "through": model.link.through(0),
                "transfers": [[*key, size] for key, size in model.link.transfers.items()],
                "gradients": sum(gradient.nbytes for _, gradient in gradients(net)),
            }
    if model.called != row["called"] * cfg.steps:
        raise CourseError("each step should do the same, and make new replicas")
    steps_taken = " + ".join(row["called"])
    print(f"devices {n}: {steps_taken}; {sum(row['through'].values()):,} bytes through device 0")
    if n == max(cfg.devices):
        first, *others = model.held
        if not all(first > other for other in others):
            raise CourseError(f"device 0 should hold more than each other, not {model.held}")
        kept = bytes_kept(net, optimizer)
        print(
            f"when forward ends, activations aside: {first:,} bytes on device 0, {others[0]:,} on device 1;"
        )
        print(f"gradients and momentum, {kept:,} bytes, stay on device 0")
    return row


def main(cfg: Config) -> None:
    data = load_images("digits")
    x, y = data.train_x[: cfg.batch].flatten(1).double(), data.train_y[: cfg.batch]
    rows = {n: train_beside_one_process(n, x, y, cfg) for n in cfg.devices}
    print(f"each equals one process after each of {cfg.steps} steps, in gradients and parameters")
    record_results("07_by_hand", rows)


if __name__ == "__main__":
    run(main, Config())
