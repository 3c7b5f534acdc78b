"""torchft: a replica group is killed, the other one trains on, its replacement gets the state from it.

torchft is not among the course's requirements. Where it is missing, this lab says so and ends.

Run it:      python labs/lab_13_torchft.py
Written by:  notebooks/13_elastic.ipynb
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE
from shared.runtime.run import die_with_launcher, run


@dataclass(frozen=True)
class Config:
    steps: int = 60
    batch: int = 48
    kill_at: int = 10  # the step in which the second group is killed
    not_alone: tuple[int, ...] = (0, 30)  # steps that are done by two groups or not at all
    tolerance: float = 1e-12
    patience_s: float = 120.0


def new_run():
    """A model and its optimizer, the same in all processes."""
    import torch  # here and below: a lab that finds no torchft is not to wait for torch

    torch.manual_seed(13)
    model = torch.nn.Linear(8, 1, dtype=torch.float64)
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def compute_gradients(model, step: int, part: int, parts: int, cfg: Config) -> None:
    """Of one part of the step's batch (48, 8); their average over all parts is that of the whole batch."""
    import torch

    x = torch.randn(cfg.batch, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    mine = x[part::parts]
    squares = (model(mine) - mine.sum(1, keepdim=True)).square()
    (squares.sum() / cfg.batch * parts).backward()


def unbroken(cfg: Config) -> list:
    """Weights of a run on one process that nobody killed, as lists."""
    model, optimizer = new_run()
    for step in range(cfg.steps):
        optimizer.zero_grad()
        compute_gradients(model, step, 0, 1, cfg)
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


# --- A replica group. Here it is one process; it could be a torchrun with many. ---


def tell(**values: object) -> None:
    print(json.dumps(values), flush=True)


def replica_group(name: str, lighthouse: str, is_to_die: bool, cfg: Config) -> None:
    """Train with whoever else is there, until all steps are done."""
    import torch.distributed as dist

    torchft = import_module("torchft")
    model, optimizer = new_run()
    store = dist.TCPStore(HERE, 0, is_master=True)  # of this group alone

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        tell(event="healed", step=manager.current_step())

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,  # a new group gets its state before it computes
        init_sync=False,  # all begin with the same weights
        replica_id=name,
        rank=0,
        world_size=1,
        store_addr=HERE,
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname=HERE,
    )
    managed = torchft.Optimizer(manager, optimizer)
    while manager.current_step() < cfg.steps:
        managed.zero_grad()  # the groups that live agree on who takes part in this step
        step = manager.current_step()
        groups = manager.num_participants()
        if step in cfg.not_alone and groups == 1:
            time.sleep(0.1)
            continue
        if is_to_die and step == cfg.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        compute_gradients(model, step, manager.participating_rank(), groups, cfg)
        for p in model.parameters():
            manager.allreduce(p.grad).wait()  # the average over groups; a failure is noted, not raised
        managed.step()  # if no gradient is missing; else nothing changes, and the step is done again
        tell(event="step", step=step, groups=groups, counts=manager.current_step() > step)
    tell(event="end", weights=[p.tolist() for p in model.parameters()])
    manager.shutdown(wait=False)
    os._exit(0)  # its threads would wait for the other group


class Group:
    """A replica group as a process, and what it has told."""

    def __init__(self, number: int, lighthouse: str, is_to_die: bool, log: Path) -> None:
        self.log = log
        arguments = ["replica", f"group_{number}", lighthouse, "to die" if is_to_die else "to live"]
        with log.open("w") as output, log.with_suffix(".err").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *arguments],
                stdout=output,
                stderr=errors,
                preexec_fn=die_with_launcher,
            )

    def told(self, event: str) -> list[dict]:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]


def wait_until(condition: Callable[[], bool], what: str, groups: list[Group], cfg: Config) -> None:
    end = time.monotonic() + cfg.patience_s
    while not condition():
        if time.monotonic() > end:
            said = "\n".join(group.log.with_suffix(".err").read_text()[-2000:] for group in groups)
            raise CourseError(f"{said}\nwaited {cfg.patience_s:.0f} s for {what}")
        time.sleep(0.05)


def largest_difference(first: list, second: list) -> float:
    import torch

    pairs = zip(first, second, strict=True)
    return max((torch.tensor(a).double() - torch.tensor(b).double()).abs().max().item() for a, b in pairs)


def check(survivor: Group, replacement: Group, cfg: Config) -> None:
    steps = survivor.told("step")
    repeated = [one["step"] for one in steps if not one["counts"]]
    if set(repeated) != {cfg.kill_at}:
        raise CourseError(f"only step {cfg.kill_at} was to be done again, found {repeated}")
    counted = [one for one in steps if one["counts"]]
    if [one["step"] for one in counted] != list(range(cfg.steps)):
        raise CourseError("the survivor was to do each step once")
    alone = [one["step"] for one in counted if one["groups"] == 1]
    if alone != list(range(cfg.kill_at, cfg.not_alone[1])):
        raise CourseError(f"the survivor was alone in steps {alone}")
    healed = [one["step"] for one in replacement.told("healed")]
    if healed != [cfg.not_alone[1]]:
        raise CourseError(f"the new group was to get the state of step {cfg.not_alone[1]}, found {healed}")
    print(f"steps {alone[0]} to {alone[-1]}: the other group goes on alone; nothing restarts there")
    print(f"step {healed[0]}: a new group has got weights and momentum from its peer, without a file")
    ends = [group.told("end")[0]["weights"] for group in (survivor, replacement)]
    if ends[0] != ends[1]:
        raise CourseError("the groups end with different weights")
    difference = largest_difference(ends[0], unbroken(cfg))
    if difference > cfg.tolerance:
        raise CourseError(f"the end differs by {difference:.1e} from that of the unbroken run")
    print(f"step {cfg.steps}: both groups have the weights of the unbroken run within {cfg.tolerance:.0e}")


def main(cfg: Config, *arguments: str) -> None:
    if find_spec("torchft") is None:
        print("torchft is not installed here; the lesson tells what this lab shows with it")
        return
    if arguments:
        _, name, lighthouse_address, fate = arguments
        replica_group(name, lighthouse_address, fate == "to die", cfg)
    print(f"torchft {version('torchft')}")
    os.environ.setdefault("RUST_LOG", "warn")
    server = import_module("torchft.coordination").LighthouseServer
    lighthouse = server(bind="[::]:0", min_replicas=1, join_timeout_ms=100, heartbeat_timeout_ms=2000)
    groups: list[Group] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in (0, 1):
                log = Path(folder) / f"{number}.out"
                groups.append(Group(number, lighthouse.address(), number == 1, log))
            victim = groups[1].process
            wait_until(lambda: victim.poll() is not None, "the death of the second group", groups, cfg)
            if victim.returncode != -signal.SIGKILL:
                raise CourseError(f"the second group ended with exit code {victim.returncode}")
            print(f"step {cfg.kill_at}: one of two replica groups is killed")
            groups.append(Group(1, lighthouse.address(), False, Path(folder) / "2.out"))
            for group in (groups[0], groups[2]):
                wait_until(lambda group=group: group.process.poll() == 0, "the end of a group", groups, cfg)
            check(groups[0], groups[2], cfg)
        finally:
            for group in groups:
                group.process.kill()
                group.process.wait()
            lighthouse.shutdown()


if __name__ == "__main__":
    run(main, Config(), *sys.argv[1:])
