"""Weight sync that goes wrong: a generator that does not receive, names in two orders, errors of calls.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lesson_23/proof_faults.py
"""

import io
import time
from contextlib import redirect_stderr
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import rpc

from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    timeout_s: float = 4.0  # of the groups
    patience_s: float = 0.5  # of a call
    slow_s: float = 1.5


ORDER = ["up", "gate"]  # two parameters of the trainer, of one shape
HERE: dict[str, torch.Tensor] = {}  # the generator's
FINISHED: list[float] = []


class NoRoom(Exception):
    """An error of our own."""


def receive_nothing() -> None:
    raise NoRoom("no room for version 8")


def sleep(seconds: float) -> None:
    time.sleep(seconds)
    FINISHED.append(seconds)


def finished() -> int:
    return len(FINISHED)


def accept(names: list[str]) -> None:
    """What the control layer is for: compare, before a byte moves."""
    if names != sorted(ORDER):
        raise ValueError(f"the trainer sends {names}, expected are {sorted(ORDER)}")


def move_in_two_orders(group: Group) -> None:
    """Rank 0 broadcasts by its own order, the last rank takes them by another."""
    last = group.world_size - 1
    if group.rank not in (0, last):
        return
    names = ORDER if group.rank == 0 else sorted(ORDER)
    for name in names:
        tensor = torch.full((2, 2), float(ORDER.index(name)), device=group.device)
        if group.rank == last:
            tensor.fill_(-1)
            dist.recv(tensor, src=0)
            HERE[name] = tensor
        else:
            dist.send(tensor, dst=last)


def what_it_holds() -> dict[str, str]:
    """{name here: the trainer's parameter whose values it holds}."""
    return {name: ORDER[int(tensor[0, 0])] for name, tensor in HERE.items()}


def orders(group: Group, names: list[str]) -> None:
    move_in_two_orders(group)
    dist.barrier()
    if group.rank == 0:
        holds = rpc.rpc_sync(names[-1], what_it_holds)
        if holds != {"gate": "up", "up": "gate"}:
            raise CourseError(f"exchanged parameters were expected, the generator holds {holds}")
        print(
            f"names in a different order: no error, and the generator's gate is the trainer's {holds['gate']}"
        )
        told = heard(names[-1], accept, ORDER)
        print(f"    fixed: {told}")


def heard(there: str, function: object, *arguments: object, timeout: float = 10.0) -> str:
    """Type and first line with a meaning of the error that a call must raise."""
    try:
        rpc.rpc_sync(there, function, args=arguments, timeout=timeout)
    except Exception as error:
        lines = str(error).splitlines()
        line = lines["On WorkerInfo" in lines[0]]
        return f"{type(error).__name__}: {line.partition('. ')[0] if 'RPC ran' in line else line}"
    raise CourseError("an error was expected, but the call returned")


def errors_of_calls(there: str, cfg: Config) -> None:
    """What the caller hears."""
    told = heard(there, receive_nothing)
    if told != "RuntimeError: NoRoom('no room for version 8')":
        raise CourseError(f"the type should have been lost, the caller heard {told}")
    print(f"the function raises NoRoom: {told}")
    told = heard(there, sleep, cfg.slow_s, timeout=cfg.patience_s)
    if "RPC ran for more than set timeout" not in told:
        raise CourseError(f"the call should have timed out, the caller heard {told}")
    end = time.monotonic() + 20
    while rpc.rpc_sync(there, finished) == 0:
        if time.monotonic() > end:
            raise CourseError("the function that took too long should have run to its end")
        time.sleep(0.1)
    print("the function takes too long: the call times out, the function runs to its end")


def does_not_receive(group: Group, names: list[str], cfg: Config) -> None:
    """The trainers gather, the first sends; the generator has an error before it receives."""
    limit = timedelta(seconds=cfg.timeout_s)
    trainers = list(range(group.world_size - 1))
    training = dist.new_group(trainers, timeout=limit)
    wire = dist.new_group([0, group.world_size - 1], timeout=limit)
    told = "answers calls"
    if group.rank in trainers:
        call = rpc.rpc_async(names[-1], receive_nothing) if group.rank == 0 else None
        try:
            for _ in range(2):  # parameters
                dist.all_reduce(torch.ones(4, device=group.device), group=training)  # for full_tensor()
                if group.rank == 0:
                    dist.broadcast(torch.ones(4, device=group.device), src=0, group=wire)
                    dist.barrier(group=wire)  # gloo may hold so few bytes for later
        except RuntimeError:
            told = "timed out in " + ("the send" if call else "the next gather")
            if call:
                told += f"; its call knows why: {str(call_error(call))}"
        else:
            raise CourseError("a time-out was expected")
    dist.barrier()
    print_in_rank_order(told)


def call_error(call: torch.futures.Future) -> str:
    """The second line of what a failed call says: the first names the worker."""
    try:
        call.wait()
    except RuntimeError as error:
        return str(error).splitlines()[1]
    raise CourseError("the call should have failed")


def main(cfg: Config) -> None:
    with (
        process_group(smallest=2) as group,
        rpc_workers(group) as names,
        redirect_stderr(io.StringIO()),  # a worker writes the traceback of what fails on it
    ):
        dist.barrier()
        orders(group, names)
        if group.rank == 0:
            errors_of_calls(names[-1], cfg)
        dist.barrier()
        print_on_rank_0("a generator that fails before it receives:")
        does_not_receive(group, names, cfg)


if __name__ == "__main__":
    run(main, Config())
