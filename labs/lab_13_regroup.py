"""A rank is killed: the others form a new group in the same processes, and later a new one joins. Over gloo.

No torchrun: it would end all ranks because of one. This process starts them and says who takes part.

Run it:      python labs/lab_13_regroup.py
Written by:  notebooks/13_elastic.ipynb (edit it there)
"""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from lab_13_restart import STEPS, assert_unbroken, loss_of, new_run
from torch import nn
from torch.distributed import distributed_c10d as c10d

HERE = "127.0.0.1"
CPU = torch.device("cpu")
KILL_BEFORE_STEP = 6  # member 2
JOIN_BEFORE_STEP = 12  # member 3
LOST_S = 6  # how long a collective waits for a rank that may be lost
MEET_S = 120  # how long members wait for each other: a new one has to import torch


class Member:
    """A process that trains with whoever else takes part. Its number stays; its rank and step change."""

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.store = dist.TCPStore(HERE, port, is_master=False, timeout=timedelta(seconds=MEET_S))
        dist.init_process_group(
            "gloo",
            store=self.store,
            rank=number,  # until it first meets the others it is alone, but needs a number of its own
            world_size=4,
            timeout=timedelta(seconds=LOST_S),
            enable_reconfigure=True,
        )
        self.model, self.optimizer = new_run(CPU)
        self.step = 0  # that are done

    def meet(self, plan: int) -> None:
        """Form a new group of the members of a plan. Whoever has done the most steps gives all its state."""
        members = json.loads(self.store.get(f"plan {plan}"))
        self.store.set(f"plan {plan}, handle of {self.number}", c10d._get_reconfigure_handle())
        handles = [self.store.get(f"plan {plan}, handle of {member}").decode() for member in members]
        c10d._reconfigure(plan, handles, timeout=timedelta(seconds=MEET_S)).wait()
        steps = [torch.zeros(1, dtype=torch.int64) for _ in members]
        dist.all_gather(steps, torch.tensor([self.step]))
        self.step = int(max(steps))
        giver = steps.index(max(steps))
        for parameter in self.model.parameters():
            momentum = self.optimizer.state[parameter].setdefault(
                "momentum_buffer", torch.zeros_like(parameter)
            )
            dist.broadcast(parameter.data, giver)
            dist.broadcast(momentum, giver)
        if dist.get_rank() == 0:
            print(f"members {members} train from step {self.step}", flush=True)

    def train_step(self) -> None:
        """Raises ``RuntimeError`` if a rank is lost; then nothing has changed."""
        rank, size = dist.get_rank(), dist.get_world_size()
        self.optimizer.zero_grad()
        loss_of(self.model, self.step, rank, size, CPU).backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
        self.optimizer.step()
        self.step += 1

    def train(self, plan: int) -> nn.Module:
        self.meet(plan)
        while self.step < STEPS:
            if self.number == 2 and self.step == KILL_BEFORE_STEP:
                os.kill(os.getpid(), signal.SIGKILL)
            if plan == 2 and self.step == JOIN_BEFORE_STEP:
                plan = 3
                self.meet(plan)
            try:
                self.train_step()
            except RuntimeError:  # the group is of no use any more
                plan += 1
                self.meet(plan)
        return self.model


def start(number: int, port: int, plan: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, __file__, str(number), str(port), str(plan)])


def main() -> None:
    store = dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    store.set("plan 1", json.dumps([0, 1, 2]))
    members = [start(number, store.port, plan=1) for number in range(3)]
    members[2].wait()  # who has started a process learns first that it has died
    store.set("plan 2", json.dumps([0, 1]))
    members.append(start(3, store.port, plan=3))
    store.set("plan 3", json.dumps([0, 1, 3]))
    codes = [member.wait() for member in members]
    assert codes == [0, 0, -signal.SIGKILL, 0], f"exit codes of the members: {codes}"
    print(f"step {STEPS}: members 0, 1 and 3 have the weights of one process that nobody killed")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        number, port, plan = map(int, sys.argv[1:])
        assert_unbroken(Member(number, port).train(plan), CPU)
        dist.barrier()
        dist.destroy_process_group()
    else:
        main()
