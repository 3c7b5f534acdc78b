"""A parameter server by RPC: one process holds the weights, the others train them; its log replays.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_23_rpc.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import os
import sys
import warnings
from threading import Lock

import torch
from torch.distributed import rpc

BATCHES, BATCH, RATE = 60, 16, 0.05  # batches of each trainer
TRUTH = torch.arange(8, dtype=torch.float64)


class ParameterServer:
    """The weights of a linear model, float64 (8,), and a log of all updates: trainer, batch, version read."""

    def __init__(self) -> None:
        self.weight = torch.zeros_like(TRUTH)
        self.log: list[tuple[int, int, int]] = []
        self.lock = Lock()  # calls of several trainers run in several threads

    def pull(self) -> tuple[int, torch.Tensor]:
        """Version and weights: the version counts the updates so far."""
        with self.lock:
            return len(self.log), self.weight.clone()

    def push(self, trainer: int, number: int, version: int, gradient: torch.Tensor) -> None:
        with self.lock:
            self.weight -= RATE * gradient
            self.log.append((trainer, number, version))

    def result(self) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
        return self.weight, self.log


def gradient_of(weight: torch.Tensor, trainer: int, number: int) -> torch.Tensor:
    """Of the mean squared error over one batch of one trainer."""
    generator = torch.Generator().manual_seed(BATCHES * trainer + number)
    x = torch.randn(BATCH, len(weight), dtype=torch.float64, generator=generator)
    return 2 * x.T @ (x @ (weight - TRUTH)) / BATCH


def train(server: rpc.RRef, trainer: int) -> str:
    """Pull, compute, push, without a look at the others. Returns the name of the worker that ran this."""
    for number in range(BATCHES):
        version, weight = server.rpc_sync().pull()
        server.rpc_sync().push(trainer, number, version, gradient_of(weight, trainer, number))
    return rpc.get_worker_info().name


def replay(log: list[tuple[int, int, int]]) -> torch.Tensor:
    """The weights that one process has after the same updates. No gradient is in the log."""
    weights = [torch.zeros_like(TRUTH)]
    for trainer, number, version in log:
        weights.append(weights[-1] - RATE * gradient_of(weights[version], trainer, number))
    return weights[-1]


def serve_and_train(workers: list[str]) -> None:
    """Make a server on the last worker, have the others train, and replay what happened."""
    *trainers, there = workers
    assert rpc.rpc_sync(there, rpc.get_worker_info).name == there  # waits for the result
    server = rpc.remote(there, ParameterServer)  # an RRef, at once: the object stays there
    assert server.owner_name() == there
    calls = [  # timeout=0: no limit; the default, 60 s, would end a longer training
        rpc.rpc_async(name, train, args=(server, number), timeout=0) for number, name in enumerate(trainers)
    ]
    assert torch.futures.wait_all(calls) == trainers  # each ran where it was sent
    weight, log = server.remote().result().to_here()  # leave the result there, then fetch a copy
    assert len(log) == len(trainers) * BATCHES
    assert torch.allclose(weight, replay(log), rtol=0, atol=1e-12), "the replay ends with other weights"
    assert torch.allclose(weight, TRUTH, rtol=0, atol=0.1), "the server has not learned the truth"
    weight.zero_()
    assert server.rpc_sync().pull()[1].any()  # the copy is ours, the server's weights are as they were
    print(f"{there} served {len(log)} updates of {', '.join(trainers)}")
    print("one process replays the log and ends with the same weights")


def main() -> None:
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:  # all on one machine
        # TensorPipe otherwise looks up the host's name, which may not lead back here.
        os.environ.setdefault("TP_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    warnings.filterwarnings("ignore", "You are using a Backend")  # torch's own, pytorch/pytorch#149393
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        serve_and_train([f"worker{other}" for other in range(world_size)])
    rpc.shutdown()  # waits for all workers, and until no call is under way


if __name__ == "__main__":
    main()
