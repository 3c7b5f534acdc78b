"""Two limits of DataParallel: what a model remembers is lost, and a model on two devices is refused.

Run it:      python labs/lab_07_limits.py
Written by:  notebooks/07_dp_vs_ddp.ipynb
"""

import torch
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.run import run


class Counting(nn.Module):
    """A model that remembers in its forward: a number, and a buffer that is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += len(x)
        return x


def on_replicas(model: Counting, x: torch.Tensor, devices: int) -> None:
    """Run ``x`` as DataParallel does: each part through a replica.

    Replicas are made by torch's own ``_replicate_for_data_parallel``. Then ``replicate`` gives the first
    one the original's buffers, the others copies on their device.
    """
    for device, part in enumerate(x.chunk(devices)):
        replica = model._replicate_for_data_parallel()
        replica.seen = model.seen if device == 0 else model.seen.clone()
        replica(part)


def main() -> None:
    x = torch.zeros(8, 3)
    plain = Counting()
    replicated = Counting()
    nn.DataParallel(plain, device_ids=[0])(x)
    on_replicas(replicated, x, devices=4)
    for name, model in (("no replica", plain), ("4 replicas", replicated)):
        print(f"{name}: the model counted {model.calls} call(s) and {model.seen:.0f} of {len(x)} images")
    if (plain.calls, plain.seen, replicated.calls, replicated.seen) != (1, 8, 0, 2):
        raise CourseError("replicas should lose the calls, and all images but those of the first part")

    spread = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, device="meta"))  # meta: a device without memory
    wrapped = nn.DataParallel(nn.Identity())
    wrapped.module = spread
    wrapped.device_ids = [0, 1]  # two simulated devices
    wrapped.src_device_obj = torch.device("cpu")
    text = "it was accepted"
    try:
        wrapped(x)
    except Exception as error:
        text = str(error)
    if "on device cpu (device_ids[0]) but found one of them on device: meta" not in text:
        raise CourseError(f"a model on two devices should be refused, not: {text}")
    print(f"a model spread over two devices: {text}")


if __name__ == "__main__":
    run(main)
