"""torchft's LocalSGD and DiLoCo beside ours: two replica groups end with the same weights.

torchft is not among the course's requirements. Where it is missing, this lab says so and ends.

Run it:      python labs/lab_14_torchft.py
Written by:  notebooks/14_less_communication.ipynb
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE
from shared.runtime.run import die_with_launcher, run


@dataclass(frozen=True)
class Config:
    groups: int = 2
    every: int = 4
    steps: int = 12
    lr: float = 0.05
    tolerance: float = 1e-12  # float64


def train(make: Callable, cfg: Config):
    """Parameters, as (name, tensor), of a run whose optimizer and model ``make`` gets before the first step.

    ``make`` is a context manager that yields what is called after each step.
    """
    import torch  # here and below: a lab that finds no torchft is not to wait for torch
    import torch.distributed as dist

    torch.manual_seed(14)  # the same model in all groups
    model = torch.nn.Linear(16, 4, dtype=torch.float64)
    inner = torch.optim.SGD(model.parameters(), cfg.lr, momentum=0.9)
    random = torch.Generator().manual_seed(dist.get_rank())  # images of its own
    with make(model, inner) as after_step:
        for _ in range(cfg.steps):
            x = torch.randn(8, 16, dtype=torch.float64, generator=random)
            inner.zero_grad()
            (model(x) - x[:, :4].cumsum(1)).square().mean().backward()
            inner.step()
            after_step()
    return [(name, p.detach()) for name, p in model.named_parameters()]


def by_hand(kind: str, cfg: Config) -> Callable:
    from lab_14_local import DiLoCo, LocalSGD

    @contextmanager
    def make(model, inner) -> Iterator[Callable]:
        meeting = {"LocalSGD": LocalSGD, "DiLoCo": DiLoCo}[kind](model.parameters(), cfg.every)
        yield meeting.after_step

    return make


def by_torchft(kind: str, lighthouse: str, cfg: Config) -> Callable:
    import torch
    import torch.distributed as dist

    torchft = import_module("torchft")
    local_sgd = import_module("torchft.local_sgd")

    @contextmanager
    def make(model, inner) -> Iterator[Callable]:
        store = dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False)  # of this group alone
        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=30)),
            load_state_dict=lambda state: None,
            state_dict=dict,
            min_replica_size=cfg.groups,
            use_async_quorum=False,
            init_sync=False,  # all begin with the same weights
            replica_id=f"{kind}_{dist.get_rank()}",
            rank=0,
            world_size=1,
            store_addr=HERE,
            store_port=store.port,
            lighthouse_addr=lighthouse,
            hostname=HERE,
        )
        if kind == "LocalSGD":
            meeting = local_sgd.LocalSGD(manager, model, inner, sync_every=cfg.every)
        else:
            outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            meeting = local_sgd.DiLoCo(manager, [model], inner, outer, sync_every=cfg.every)
        with meeting:
            yield lambda: None  # it has hooked itself into the optimizer
        dist.barrier()
        manager.shutdown(wait=False)

    return make


def replica_group(cfg: Config) -> None:
    """One of the groups: a process. Beside torchft's connections all of them form a group of torch's."""
    import torch.distributed as dist

    from shared.runtime.report import print_on_rank_0
    from shared.training.parity import assert_all_equal, assert_same_on_every_rank

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    address = [None]
    if dist.get_rank() == 0:
        server = import_module("torchft.coordination").LighthouseServer
        lighthouse = server(bind="[::]:0", min_replicas=cfg.groups, join_timeout_ms=30_000)
        address = [lighthouse.address()]
    dist.broadcast_object_list(address)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):  # torchft would take them for its own
        os.environ.pop(name)
    for kind in ("LocalSGD", "DiLoCo"):
        ours = train(by_hand(kind, cfg), cfg)
        theirs = train(by_torchft(kind, address[0], cfg), cfg)
        assert_same_on_every_rank(kind, ours)
        assert_all_equal(f"{kind}, torchft's and ours:", theirs, ours, cfg.tolerance)
        print_on_rank_0(f"{kind}: torchft's weights are ours within {cfg.tolerance:.0e}")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # torchft's threads would wait for the other group


def main(cfg: Config, *arguments: str) -> None:
    if find_spec("torchft") is None:
        print("torchft is not installed here; the lesson tells what this lab shows with it")
        return
    if arguments:
        replica_group(cfg)
    print(f"torchft {version('torchft')}", flush=True)
    os.environ.setdefault("RUST_LOG", "warn")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, f"--nproc-per-node={cfg.groups}", __file__, "group"],
        preexec_fn=die_with_launcher,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise CourseError("the replica groups did not end well")


if __name__ == "__main__":
    run(main, Config(), *sys.argv[1:])
