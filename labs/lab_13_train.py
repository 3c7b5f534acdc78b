"""Training that goes on after a kill: snapshot, restart, resume, with however many ranks.

Run it:      TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --max-restarts=3 labs/lab_13_train.py
Written by:  notebooks/13_elastic.ipynb
"""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.checkpoint import load_checkpoint, save_atomically
from shared.training.data import load_images
from shared.training.models import ConvNet
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 60
    batch: int = 48  # images per step, of all ranks together
    save_every: int = 10
    tolerance: float = 1e-12
    waits: tuple = ((28, 2), (48, 1))  # with --two-nodes: (step, number of nodes it waits for)


@dataclass
class Diary:
    """One line of JSON for each event of this job. It is appended to, so it survives every kill."""

    path: Path
    job: str

    def write(self, event: str, **values: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"job": self.job, "event": event, **values}) + "\n")

    def steps_of(self, event: str) -> set[int]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {x["step"] for x in map(json.loads, lines) if (x["job"], x["event"]) == (self.job, event)}


def part_of_batch(step: int, rank: int, world_size: int, count: int, cfg: Config) -> torch.Tensor:
    """Indices of this rank's images. The whole batch is a function of the step and of nothing else."""
    batch = torch.randint(count, (cfg.batch,), generator=torch.Generator().manual_seed(step))
    return batch[rank::world_size]


def new_run(device: torch.device | str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(13)  # the same start in each generation and in the reference
    model = ConvNet().double().to(device)
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def reference(cfg: Config) -> nn.Module:
    """The unbroken run: one process, the whole batch, every step once."""
    model, optimizer = new_run("cpu")
    x, y = load_images("digits")[:2]
    for step in range(1, cfg.steps + 1):
        whole = part_of_batch(step, 0, 1, len(x), cfg)
        optimizer.zero_grad()
        F.cross_entropy(model(x[whole].double()), y[whole]).backward()
        optimizer.step()
    return model


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path, job: str, group: Group) -> int:
    """Load the snapshot of this job, if there is one. Returns how many steps are done: 0 without it."""
    saved = load_checkpoint(path, group.device) if path.exists() else {"job": None}
    if saved["job"] != job:  # nothing yet, or from an earlier run of this lab
        return 0
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def wait_for_nodes(wanted: int, step: int, diary: Diary, group: Group) -> None:
    """Do collectives, as in training, until the restart comes that gives us another number of nodes."""
    if group.rank == 0:
        diary.write("wait", step=step, nodes=wanted)
    for _ in range(1800):
        dist.all_reduce(torch.zeros(1, device=group.device))
        time.sleep(0.05)
    raise CourseError(f"step {step}: the world did not change in time")


def train(kill_at: set[int], waits: dict, path: Path, diary: Diary, group: Group, cfg: Config) -> nn.Module:
    model, optimizer = new_run(group.device)
    done = resume(model, optimizer, path, diary.job, group)
    ddp = DistributedDataParallel(model)  # takes rank 0's weights, as always
    x, y = (part.to(group.device) for part in load_images("digits")[:2])
    nodes = int(os.environ["GROUP_WORLD_SIZE"])
    kill_at = kill_at - diary.steps_of("kill")
    restarts = [None] * group.world_size
    dist.all_gather_object(restarts, int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    if group.rank == 0:
        world = {"world": group.world_size, "nodes": nodes, "port": os.environ["MASTER_PORT"]}
        diary.write("start", step=done, restarts=restarts, **world)
    print_on_rank_0(f"{group.world_size} rank(s) go on after step {done}")
    for step in range(done + 1, cfg.steps + 1):
        if waits.get(step, nodes) != nodes:
            wait_for_nodes(waits[step], step, diary, group)
        mine = part_of_batch(step, group.rank, group.world_size, len(x), cfg)
        loss = F.cross_entropy(ddp(x[mine].double()), y[mine], reduction="sum") / cfg.batch
        total = loss.detach().clone()
        dist.all_reduce(total)
        if step in kill_at and group.rank == group.world_size - 1:
            diary.write("kill", step=step, rank=group.rank)
            os.kill(os.getpid(), signal.SIGKILL)  # in mid-step: the loss is known, the gradients are not
        optimizer.zero_grad()
        (loss * group.world_size).backward()  # DDP divides the sum over ranks by their number
        optimizer.step()
        if group.rank == 0:
            diary.write("step", step=step, world=group.world_size, loss=total.item())
            if step % cfg.save_every == 0:
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save_atomically({"job": diary.job, "step": step, **saved}, path)
    return ddp


def main(cfg: Config, *arguments: str) -> None:
    shared_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shared_store and os.environ.get("TORCHELASTIC_MAX_RESTARTS") != "0":
        raise InputError("set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: a restart needs a new store")
    waits = dict(cfg.waits) if "--two-nodes" in arguments else {}
    kill_at = {int(text) for text in arguments if text.isdigit()}
    with process_group(seed=13, timeout_s=60) as group:
        folder = results_folder()
        name = "lab_13_nodes" if waits else "lab_13_train"
        folder.mkdir(parents=True, exist_ok=True)
        diary = Diary(folder / f"{name}.jsonl", os.environ["TORCHELASTIC_RUN_ID"])
        ddp = train(kill_at, waits, folder / f"{name}.pt", diary, group, cfg)
        assert_same_on_every_rank("at the end", parameters(ddp))
        assert_all_equal("the end", parameters(ddp.module.cpu()), parameters(reference(cfg)), cfg.tolerance)
        print_on_rank_0(f"step {cfg.steps}: weights equal the unbroken run's within {cfg.tolerance:.0e}")


if __name__ == "__main__":
    run(main, Config(), *sys.argv[1:])
