"""DataParallel step by step on 1 to 8 simulated devices: equal to one process, every byte counted.

Run it:      python labs/lab_07_by_hand.py
Written by:  notebooks/07_dp_vs_ddp.ipynb
"""

import copy
import threading
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, gradients, parameters
from shared.training.simulated_devices import Link


@dataclass(frozen=True)
class Config:
    devices: int = 8  # the largest number of simulated devices
    steps: int = 5
    batch: int = 840  # divides by 1 to 8
    learning_rate: float = 0.5
    tolerance: float = 1e-12  # float64


class SimulatedDataParallel(nn.DataParallel):
    """torch's DataParallel on ``n`` simulated devices. ``forward`` is torch's own.

    It calls the four methods below, which do on CPU tensors what torch's do on GPUs, and notes them in
    ``called``. ``held[device]``: bytes of the tensors there when forward ends, activations aside.
    Source: torch/nn/parallel/data_parallel.py.
    """

    def __init__(self, module: nn.Module, n: int, link: Link) -> None:
        nn.Module.__init__(self)
        self.module, self.link, self.dim = module, link, 0
        self.device_ids, self.output_device, self.src_device_obj = list(range(n)), 0, torch.device("cpu")
        self.called, self.workers, self.held = [], [], []

    def scatter(self, inputs, kwargs, device_ids):
        self.called.append("scatter")
        chunks = inputs[0].chunk(len(device_ids))  # may be fewer than devices
        parts = [self.link.transfer("inputs", chunk, 0, d) for d, chunk in enumerate(chunks)]
        self.tensors = [[part] for part in parts]  # device 0's part is a view of the whole batch
        return [(part,) for part in parts], [{} for _ in parts]

    def replicate(self, module, device_ids):
        self.called.append("replicate")
        replicas = []
        for d in device_ids:  # device 0 keeps the original tensors
            values = {k: self.link.transfer("parameters", p, 0, d) for k, p in module.named_parameters()}
            values |= {k: self.link.transfer("buffers", b, 0, d) for k, b in module.named_buffers()}
            self.tensors[d] += values.values()
            replicas.append((copy.deepcopy(module), values))
        return replicas

    def parallel_apply(self, replicas, inputs, kwargs):
        self.called.append("parallel_apply")
        outputs = [None] * len(replicas)

        def work(d: int) -> None:
            outputs[d] = functional_call(*replicas[d], inputs[d])
            self.tensors[d].append(outputs[d])
            self.workers.append(threading.current_thread().name)

        threads = [threading.Thread(target=work, args=(d,)) for d in range(len(replicas))]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return outputs

    def gather(self, outputs, output_device):
        self.called.append("gather")
        arrived = [
            self.link.transfer("outputs", output, d, output_device) for d, output in enumerate(outputs)
        ]
        whole = torch.cat(arrived)
        self.tensors[output_device].append(whole)
        storages = [{t.untyped_storage().data_ptr(): t.untyped_storage() for t in ts} for ts in self.tensors]
        self.held = [sum(storage.nbytes() for storage in one.values()) for one in storages]
        return whole


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """One step, with or without a wrapper: the loss is the mean over the whole, gathered output."""
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def build(cfg: Config) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Digits (batch, 64) to scores (batch, 10), with buffers, a frozen layer, a weight used twice."""
    torch.manual_seed(0)
    tied, twin = nn.Linear(128, 128), nn.Linear(128, 128)
    twin.weight = tied.weight
    frozen = nn.Linear(64, 128).requires_grad_(False)
    layers = (nn.BatchNorm1d(64), frozen, tied, nn.Tanh(), twin, nn.Tanh(), nn.Linear(128, 10))
    net = nn.Sequential(*layers).double().eval()  # eval: batch norm's averages stay as they are
    return net, torch.optim.SGD(net.parameters(), cfg.learning_rate, momentum=0.9)


reference = build  # one process without a wrapper starts from the same parameters


def record(model: SimulatedDataParallel, optimizer: torch.optim.Optimizer) -> dict:
    """What one step on the simulated devices did, for the notebook."""
    learned = [state["momentum_buffer"] for state in optimizer.state.values()]
    learned += [p.grad for p in model.module.parameters() if p.grad is not None]
    assert len(set(model.workers)) == len(model.workers), "each replica runs in a thread of its own"
    return {
        "called": model.called[:],
        "through": model.link.through(0),
        "transfers": [[*key, size] for key, size in model.link.transfers.items()],
        "held": model.held,
        "learned": sum(t.nbytes for t in learned),  # where the parameters are: on device 0
    }


def main(cfg: Config) -> None:
    data = load_images("digits")
    x, y = data.train_x[: cfg.batch].flatten(1).double(), data.train_y[: cfg.batch]
    rows = {}
    for n in range(cfg.devices + 1):
        alone, alone_optimizer = reference(cfg)
        net, optimizer = build(cfg)
        model = SimulatedDataParallel(net, n, Link())
        for step in range(cfg.steps):
            train_step(alone, alone_optimizer, x, y)
            train_step(model, optimizer, x, y)
            assert_all_equal("gradient", gradients(net), gradients(alone), cfg.tolerance)
            assert_all_equal("parameter", parameters(net), parameters(alone), cfg.tolerance)
            if step == 0:
                row = rows[n] = record(model, optimizer)
        assert model.called == row["called"] * cfg.steps, "the same in each step: new replicas, too"
        what, size = " + ".join(row["called"]) or "nothing", sum(row["through"].values())
        print(f"devices {n}: {what}; {len(model.workers) // cfg.steps} threads; {size:,} bytes")
    print(f"each equals one process after each of {cfg.steps} steps, in gradients and parameters")

    small = SimulatedDataParallel(net, 8, Link())
    small(x[:9])
    assert len(small.workers) == 5
    print(f"a batch of 9 on 8 devices: {len(small.workers)} of them get a part of it")
    record_results("lab_07_by_hand", {"steps": rows, "values": sum(p.sum().item() for p in net.parameters())})


if __name__ == "__main__":
    run(main, Config())
