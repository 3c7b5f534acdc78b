"""One rank saves, all load: with the barrier between them, and without it.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_11_rank0.py
Written by:  notebooks/11_checkpoints.ipynb
"""

import io
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.models import ConvNet
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 3
    batch: int = 48  # images per rank and step


def train(cfg: Config, group: Group) -> DistributedDataParallel:
    """A model after a few steps, equal on every rank."""
    data = load_images("digits")
    ddp = DistributedDataParallel(ConvNet().to(group.device))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for _ in range(cfg.steps):
        mine = torch.randint(len(data.train_x), (cfg.batch,))
        optimizer.zero_grad()
        F.cross_entropy(
            ddp(data.train_x[mine].to(group.device)), data.train_y[mine].to(group.device)
        ).backward()
        optimizer.step()
    return ddp


def save_and_load(ddp: DistributedDataParallel, path: Path, group: Group) -> nn.Module:
    """Rank 0 saves, everyone waits, everyone loads onto its own device. Returns the loaded model."""
    if group.rank == 0:
        torch.save(ddp.module.state_dict(), path)
    dist.barrier()  # nobody reads before rank 0 has written
    model = ConvNet().to(group.device)  # other parameters on each rank
    model.load_state_dict(torch.load(path, map_location=group.device, weights_only=True))
    dist.barrier()  # nobody removes or replaces the file before all have read
    return model


def load_too_early(scene: str, ddp: DistributedDataParallel, path: Path, group: Group) -> str:
    """Load without waiting: rank 0 is slow, and goes on writing only after the others have read."""
    buffer = io.BytesIO()
    torch.save(ddp.module.state_dict(), buffer)
    if group.rank == 0:
        path.unlink(missing_ok=True)
        if scene == "half a file":
            path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
        elif scene == "an older file":
            torch.save(ConvNet().state_dict(), path)
    dist.barrier()
    outcome = "waits"
    model = ddp.module
    if group.rank > 0:
        model = ConvNet().to(group.device)
        try:
            model.load_state_dict(torch.load(path, map_location=group.device, weights_only=True))
            outcome = "loads, and notices nothing"
        except FileNotFoundError:
            outcome = "FileNotFoundError"
        except (EOFError, OSError, RuntimeError):  # which of them depends on where the file ends
            outcome = "cannot be read"
    dist.barrier()  # only now does rank 0 finish its file
    if group.rank == 0:
        path.write_bytes(buffer.getvalue())
        outcome = "has saved at last"
    if scene == "an older file":
        try:
            assert_same_on_every_rank("after loading", parameters(model))
        except ParityError:
            return f"{outcome}; the replicas differ"
    return outcome


def whose_device(path: Path) -> str:
    """Where a checkpoint that was saved on the first GPU goes when map_location is left out."""
    # No GPU needed: while `forging`, torch.save notes for each tensor that it came from cuda:0.
    forging = True
    torch.serialization.register_package(0, lambda _: "cuda:0" if forging else None, lambda *_: None)
    torch.save({"weight": torch.ones(3)}, path)
    forging = False
    for there in ("cpu", "meta"):
        if torch.load(path, map_location=there)["weight"].device.type != there:
            raise CourseError(f"map_location={there} was not obeyed")
    try:
        return f"goes to {torch.load(path)['weight'].device}"
    except RuntimeError as error:
        return f"fails: {str(error).partition(' but')[0]}"


def prefix(ddp: DistributedDataParallel) -> list[str]:
    """What the wrapper's names do to a plain model."""
    state = ddp.state_dict()
    plain = ConvNet().to(next(ddp.parameters()).device)
    before = [(name, p.clone()) for name, p in parameters(plain)]
    lines = [f"the wrapper's first name is {next(iter(state))}"]
    try:
        plain.load_state_dict(state)
    except RuntimeError as error:
        lines.append(str(error).splitlines()[1].strip()[:46])
    missing = plain.load_state_dict(state, strict=False).missing_keys
    assert_all_equal("strict=False", parameters(plain), before, 0.0)
    lines.append(f"strict=False: no error, {len(missing)} of {len(before)} parameters not loaded")
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    plain.load_state_dict(state)
    assert_all_equal("without prefix", parameters(plain), parameters(ddp), 0.0)
    return [*lines, "without the prefix: loaded, equal"]


def main(cfg: Config) -> None:
    with process_group(seed=11, timeout_s=20) as group:
        path = results_folder() / f"lab_11_rank0.{group.world_size}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        ddp = train(cfg, group)
        model = save_and_load(ddp, path, group)
        assert_same_on_every_rank("loaded", parameters(model))
        assert_all_equal("loaded", parameters(model), parameters(ddp), 0.0)
        total = sum(p.sum() for p in model.parameters())
        print_in_rank_order(f"with the barrier: parameters sum to {total:.4f}")
        expected = ("FileNotFoundError", "cannot be read", "loads, and notices nothing; ")
        for scene, text in zip(("no file", "half a file", "an older file"), expected, strict=True):
            outcome = load_too_early(scene, ddp, path, group)
            print_in_rank_order(f"without it, {scene}: {outcome}")
            if group.rank > 0 and not outcome.startswith(text):
                raise CourseError(f"{scene}: {outcome}, expected {text}")
        if group.rank == 0:
            print(f"saved on cuda:0, loaded without map_location: {whose_device(path)}")
            print("\n".join(prefix(ddp)))
            path.unlink()


if __name__ == "__main__":
    run(main, Config())
