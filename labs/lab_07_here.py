"""nn.DataParallel as it behaves on this machine: with no GPU, with one, with several.

Run it:      python labs/lab_07_here.py
Written by:  notebooks/07_dp_vs_ddp.ipynb
"""

import contextlib
import os
import warnings
from dataclasses import dataclass

import torch
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_equal, gradients


@dataclass(frozen=True)
class Config:
    batch: int = 840  # divides by 1 to 8
    tolerance: float = 1e-12  # float64


def reference(cfg: Config) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model without any wrapper, a batch, and what the model makes of it; its gradients are filled."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    x = torch.randn(cfg.batch, 64, dtype=torch.float64)
    output = model(x)
    output.square().mean().backward()
    return model, x, output


def main(cfg: Config) -> None:
    if os.environ.get("RANK_BY_RANK_DEVICE") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # DataParallel takes every GPU that it can see
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    warnings.simplefilter("error", FutureWarning if gpus else Warning)  # GPUs of different size do warn
    alone, x, expected = reference(cfg)
    model, _, _ = reference(cfg)  # the same seed: the same model
    model.zero_grad()

    wrapped = nn.DataParallel(model)
    assert wrapped.device_ids == list(range(gpus))
    print(f"GPUs here: {gpus}; nn.DataParallel(model).device_ids is {wrapped.device_ids}, without a warning")
    if gpus == 0:
        greedy = nn.DataParallel(model, device_ids=[0, 1, 2, 3])
        assert greedy.device_ids == []
        print("asked for device_ids=[0, 1, 2, 3] it takes [] as well, without a warning")
        with contextlib.suppress(RuntimeError, AssertionError):  # the text depends on how torch was built
            greedy.cuda()
            raise CourseError("without a GPU, cuda() should fail")
        print("only wrapped.cuda() fails")

    if gpus > 1:  # with one GPU the constructor has moved the model already
        assert next(model.parameters()).device.type == "cpu"
        wrapped = wrapped.cuda()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    output = wrapped(x)  # a batch on the CPU is fine: scatter brings it to the devices
    output.square().mean().backward()
    assert len(calls) == max(1, gpus)
    print(f"one call of the wrapper ran the model's forward {len(calls)} time(s)")

    assert wrapped.module is model
    assert all(a is b for a, b in zip(wrapped.parameters(), model.parameters(), strict=True))
    assert list(wrapped.state_dict()) == [f"module.{name}" for name in model.state_dict()]
    print(f"parameters: the model's own objects; in state_dict: {list(wrapped.state_dict())[0]!r}, ...")

    assert_equal("output", output.cpu(), expected, cfg.tolerance)
    from_wrapped = [(name, gradient.cpu()) for name, gradient in gradients(model)]
    assert_all_equal("gradient", from_wrapped, gradients(alone), cfg.tolerance)
    if gpus == 0:
        assert torch.equal(output, expected)
    print("outputs and gradients: those of the model without the wrapper")


if __name__ == "__main__":
    run(main, Config())
