"""The same weights by calls and by a process group, whole and in slices: equal bit for bit, and counted.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_23_sync.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import torch
import torch.distributed as dist
from lab_23_weights import Box, all_boxes, build, divide_jobs, overlap, send_slices, send_whole, within
from torch import nn
from torch.distributed import rpc

from shared.comm.kernel import wire_bytes
from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, int, int] = (192, 768, 384)  # so large that what calls add is small
    at_most: float = 1.1  # bytes on the wire for each byte of weights
    settle_s: float = 0.2


class RolloutWorker:
    """Weights that others replace while it generates. Calls run in several threads.

    Pieces go into ``spare``; only ``publish`` changes what answers are made of, all of it at once.
    """

    def __init__(self, policy: nn.Module, boxes: dict[str, Box]) -> None:
        self.lock = Lock()
        self.boxes = boxes
        self.version = 0
        self.parts = {name: parameter.to_local().detach() for name, parameter in policy.named_parameters()}
        self.spare = {name: part.clone() for name, part in self.parts.items()}

    def receive_whole(self, name: str, whole: torch.Tensor) -> None:
        """A parameter of the next version, of which we keep our part."""
        self.receive(name, (slice(None), slice(None)), whole[self.boxes[name]])

    def receive(self, name: str, part: Box, piece: torch.Tensor) -> None:
        """A piece of the next version; ``part`` says where in what we hold."""
        with self.lock:
            self.spare[name][part].copy_(piece)

    def publish(self, version: int) -> None:
        with self.lock:
            for name, part in self.parts.items():
                part.copy_(self.spare[name])
            self.version = version

    def state(self) -> tuple[int, dict[str, torch.Tensor]]:
        """What an answer that begins now would be made of."""
        with self.lock:
            return self.version, {name: part.cpu().clone() for name, part in self.parts.items()}


HERE: dict[str, RolloutWorker] = {}


def worker() -> rpc.RRef:
    return rpc.RRef(HERE["worker"])


@torch.no_grad()
def call_whole(policy: nn.Module, boxes: list, workers: dict[int, rpc.RRef]) -> tuple[int, list]:
    """The first trainer calls each generator with each whole parameter. Returns bytes, and the calls."""
    calls = []
    sent = 0
    for name, parameter in policy.named_parameters():
        whole = parameter.full_tensor().cpu()
        for there in workers.values() if dist.get_rank() == 0 else ():
            calls.append(there.rpc_async().receive_whole(name, whole))
            sent += whole.nbytes
    return sent, calls


@torch.no_grad()
def call_slices(policy: nn.Module, boxes: list, workers: dict[int, rpc.RRef]) -> tuple[int, list]:
    """Each trainer calls each generator with what both hold. Returns bytes, and the calls."""
    calls = []
    sent = 0
    for name, parameter in policy.named_parameters():
        mine = boxes[dist.get_rank()][name]
        for rank, there in workers.items():
            theirs = boxes[rank][name]
            part = overlap(mine, theirs)
            if part is not None:
                piece = parameter.to_local()[within(part, mine)].cpu().clone()  # a view sends all its storage
                calls.append(there.rpc_async().receive(name, within(part, theirs), piece))
                sent += piece.nbytes
    return sent, calls


def by_group(send: Callable) -> Callable:
    """A way as the loop below wants it. The generators receive with their own collectives and messages."""

    def way(policy: nn.Module, boxes: list, workers: dict[int, rpc.RRef], version: int) -> int:
        sent = send(policy, boxes, *divide_jobs())
        if "worker" in HERE:
            HERE["worker"].version = version
        return sent

    return way


def by_calls(start: Callable) -> Callable:
    """The generators are called. Until somebody publishes, they answer with the version before."""

    def way(policy: nn.Module, boxes: list, workers: dict[int, rpc.RRef], version: int) -> int:
        sent = 0
        before = {rank: there.rpc_sync().state() for rank, there in workers.items()}
        if workers:
            sent, calls = start(policy, boxes, workers)
            torch.futures.wait_all(calls)
        dist.barrier()  # all pieces have arrived
        for rank, there in workers.items() if dist.get_rank() == 0 else ():
            if not same(there.rpc_sync().state(), before[rank]):
                raise CourseError(f"worker{rank} answers with pieces of version {version}, not yet published")
            there.rpc_sync().publish(version)
        dist.barrier()
        return sent

    return way


WAYS = {
    "whole, by a group": by_group(send_whole),
    "slices, by a group": by_group(send_slices),
    "whole, by calls": by_calls(call_whole),
    "slices, by calls": by_calls(call_slices),
}


def same(one: tuple, other: tuple) -> bool:
    """Whether two states have one version and equal weights."""
    return one[0] == other[0] and all(torch.equal(part, other[1][name]) for name, part in one[1].items())


@torch.no_grad()
def check_arrival(policy: nn.Module, boxes: list, version: int, what: str) -> None:
    """Each generator must hold, bit for bit, its part of what the trainers have. Collective."""
    trainers, _ = divide_jobs()
    for name, parameter in policy.named_parameters():
        if dist.get_rank() in trainers:
            whole = parameter.full_tensor()
        else:
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        dist.broadcast(whole, src=0)
        if dist.get_rank() not in trainers:
            mine = whole[boxes[dist.get_rank()][name]]
            if not torch.equal(parameter.to_local(), mine) or HERE["worker"].version != version:
                raise CourseError(f"{what}: {name} of version {version} is not what the trainers have")
    dist.barrier()  # the next version's calls come when all have looked


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group, rpc_workers(group, tcp_only=True) as names:
        trainers, generators = divide_jobs()
        policy = build(trainers, generators, group.device, cfg.sizes)
        boxes = all_boxes(policy)
        if group.rank in generators:
            HERE["worker"] = RolloutWorker(policy, boxes[group.rank])
        dist.barrier()
        workers = {}
        if group.rank in trainers:
            workers = {rank: rpc.rpc_sync(names[rank], worker) for rank in generators}
        first = None
        for version, (what, way) in enumerate(WAYS.items(), start=1):
            if group.rank in trainers:
                for parameter in policy.parameters():  # what a step of training would change
                    parameter.to_local().detach().normal_()
            start = wire_bytes()
            sent = way(policy, boxes, workers, version)
            time.sleep(cfg.settle_s)
            on_the_wire = None if start is None else wire_bytes() - start
            check_arrival(policy, boxes, version, what)
            first = first or sent
            print_on_rank_0(
                f"{what:19} rank 0 sends {sent:9,} bytes, 1/{first / max(1, sent):.0f} of the first"
            )
            gathered = 0
            if "whole" in what:  # the trainers' own all-gather
                gathered = sum(
                    p.numel() * 4 * (len(trainers) - 1) // len(trainers) for p in policy.parameters()
                )
            if group.rank == 0 and on_the_wire is not None:
                share = on_the_wire / (sent + gathered)
                if not 1 <= share < cfg.at_most:
                    raise CourseError(f"{what}: {share:.2f} bytes on the wire for each byte of weights")
        print_on_rank_0("each way: every generator holds its part of the trainers' weights, bit for bit")
        workers.clear()
        dist.barrier()


if __name__ == "__main__":
    run(main, Config())
