"""The time of a training step on a slow wire: without communication, by our three DDPs and by torch's.

    torchrun --standalone --nproc-per-node=2 labs/lesson_09/bench_ddp.py

Not a test. All ways take their steps in turns, so that they see the same load; medians count. Taught in
lesson 09.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.paced import GBIT, Sending, Wire, on_wire
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

from lab_09_overlapped import OverlappedDDP
from lesson_09.proof_after import FlatDDP, NaiveDDP

WARM_UP = 2  # DDP settles its buckets after the first step
REAL_ALL_REDUCE = dist.all_reduce  # whatever wire is in place


def wrappers(cap: float | None, wire: Wire | None) -> dict[str, Callable[[nn.Module], nn.Module]]:
    """{name: function from a model to the model to train}. torch's DDP uses the wire by a hook."""

    def torchs(model: nn.Module) -> nn.Module:
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap)
        if wire:
            ddp.register_comm_hook(dist.group.WORLD, wire.comm_hook)
        return ddp

    return {
        "no communication": lambda model: model,
        "naive": NaiveDDP,
        "flat": FlatDDP,
        "overlapped": lambda model: OverlappedDDP(model, cap),
        "torch": torchs,
    }


class Step:
    """One model that trains on random images, and the times of its steps."""

    def __init__(self, wrap: Callable, model: nn.Module, args: argparse.Namespace, group: Group) -> None:
        self.model = wrap(copy.deepcopy(model).to(group.device))
        self.group = group
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.x = torch.randn(args.batch, 3, args.image, args.image, device=group.device)
        self.y = torch.ones(args.batch, dtype=torch.int64, device=group.device)
        self.times: list[list[float]] = []  # forward, backward with communication, both

    def now(self) -> float:
        if self.group.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        dist.barrier()
        start = self.now()
        loss = F.cross_entropy(self.model(self.x), self.y)
        forward = self.now()
        loss.backward()
        if hasattr(self.model, "reduce_gradients"):
            self.model.reduce_gradients()
        end = self.now()
        took = torch.tensor([forward - start, end - forward, end - start], device=self.group.device)
        REAL_ALL_REDUCE(took, op=dist.ReduceOp.MAX)  # the slowest rank counts
        self.times.append(took.tolist())
        self.optimizer.step()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a training step by our DDPs and torch's.")
    parser.add_argument("--model", default="resnet18", help="a model of torchvision")
    parser.add_argument("--image", type=int, default=32, help="height and width")
    parser.add_argument("--batch", type=int, default=2, help="images per process")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each way")
    parser.add_argument("--bucket-cap-mb", type=float, default=None)
    parser.add_argument("--gbit", type=float, default=5.0, help="of the wire; 0: the network as it is")
    parser.add_argument("--alpha-us", type=float, default=500.0, help="for each message on the wire")
    return parser.parse_args()


def main() -> None:
    with process_group(timeout_s=600, report=False) as group:
        args = arguments()
        wire = Wire(args.alpha_us * 1e-6, args.gbit * GBIT) if args.gbit else None
        model = getattr(torchvision.models, args.model)()
        steps: dict[str, Step] = {}
        sent: dict[str, list[Sending]] = {}  # of the last step of each way
        for name, wrap in wrappers(args.bucket_cap_mb, wire).items():
            steps[name] = Step(wrap, model, args, group)
        for _ in range(WARM_UP + args.steps):
            for name, step in steps.items():
                before = len(wire.log) if wire else 0
                with on_wire(wire) if wire and name != "torch" else nullcontext():
                    step()
                sent[name] = wire.log[before:] if wire else []
        print_on_rank_0(f"{args.model}, {args.batch} images of {args.image} x {args.image} per process")
        load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end"
        print_on_rank_0(f"{group.world_size} processes, medians of {args.steps} steps; {load}")
        columns = f"{'forward':>9}{'backward':>10}{'total':>8}{'wire':>8}{'all-reduces':>13}"
        print_on_rank_0(f"{'milliseconds':18}{columns}")
        for name, step in steps.items():
            parts = [1e3 * statistics.median(part) for part in zip(*step.times[WARM_UP:], strict=True)]
            parts.append(1e3 * sum(sending.end - sending.start for sending in sent[name]))
            print_on_rank_0(
                f"{name:18}{parts[0]:9.0f}{parts[1]:10.0f}{parts[2]:8.0f}{parts[3]:8.0f}{len(sent[name]):13}"
            )


if __name__ == "__main__":
    run(main)
