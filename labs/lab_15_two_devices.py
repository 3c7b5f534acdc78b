"""One model over two devices, in one process: equal to one device, and what each device holds.

Run it:      python labs/lab_15_two_devices.py
Written by:  notebooks/15_model_parallel.ipynb
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from shared.lesson_15.two_devices import ToyMpModel, TwoDevices
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, gradients, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 5
    batch: int = 840
    learning_rate: float = 0.01
    tolerance: float = 1e-12  # float64; on GPUs too


def reference(device: torch.device) -> nn.Module:
    """The same layers, all on one device."""
    torch.manual_seed(15)
    layers = {"flat": nn.Flatten(), "net1": nn.Linear(64, 128), "relu": nn.ReLU(), "net2": nn.Linear(128, 10)}
    return nn.Sequential(OrderedDict(layers)).double().to(device)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """One step; the labels must be where the output is."""
    optimizer.zero_grad()
    output = model(x)
    F.cross_entropy(output, y.to(output.device)).backward()
    optimizer.step()
    return output


def bytes_on(part: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Parameters, gradients and optimizer state of a part of the model."""
    tensors = [*part.parameters(), *(p.grad for p in part.parameters())]
    tensors += [t for p in part.parameters() for t in optimizer.state[p].values() if t.dim()]
    return sum(tensor.nbytes for tensor in tensors)


def mixed_up(devices: TwoDevices) -> str:
    """What torch says when the activations are not moved. Without GPUs, `meta` is the other device."""
    second = devices.second if devices.real else torch.device("meta")
    try:
        nn.Linear(8, 8, device=second)(
            nn.Linear(8, 8, device=devices.first)(torch.ones(1, 8).to(devices.first))
        )
    except (RuntimeError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    raise AssertionError("torch was to complain")


def main(cfg: Config) -> None:
    data = load_images("digits")
    devices = TwoDevices.of_process(0, 1)
    x = data.train_x[: cfg.batch].double().to(devices.first)
    y = data.train_y[: cfg.batch]
    alone = reference(devices.first)
    torch.manual_seed(15)
    model = ToyMpModel(devices).double()
    print(devices)
    optimizers = [torch.optim.Adam(net.parameters(), cfg.learning_rate) for net in (model, alone)]
    for _ in range(cfg.steps):
        for net, optimizer in zip((model, alone), optimizers, strict=True):
            output = train_step(net, optimizer, x, y)
        for what, of in (("gradient", gradients), ("parameter", parameters)):
            ours = [(name, t.to(devices.first)) for name, t in of(model)]
            assert_all_equal(what, ours, of(alone), cfg.tolerance)
    assert output.shape == (cfg.batch, 10)
    print(f"two devices equal one after each of {cfg.steps} steps, in gradients and parameters")

    held = [bytes_on(part, optimizers[0]) for part in (model.net1, model.net2)]
    whole = bytes_on(alone, optimizers[1])
    assert sum(held) == whole
    print(f"first device: {held[0]:,} bytes, second: {held[1]:,}; together those of one device: {whole:,}")

    hidden = cfg.batch * 128 * 8  # float64
    expected = {("activations", 0, 1): hidden, ("gradients of activations", 1, 0): hidden}
    transfers = {key: size // cfg.steps for key, size in devices.transfers.items()}
    assert transfers == expected, transfers
    for (what, source, target), size in transfers.items():
        print(f"device {source} to {target}: {size:,} bytes of {what} in each step")

    said = mixed_up(devices)
    assert "same device" in said or "device meta" in said, said
    print(f"not moved: {said}")
    record_results("lab_15_two_devices", {"held": held, "crossing": hidden})


if __name__ == "__main__":
    run(main, Config())
