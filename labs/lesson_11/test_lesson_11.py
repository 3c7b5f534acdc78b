"""Checkpoints of `shared` and of the lab: what is saved is loaded, and what fails is told in one line."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from labs import lab_11_checkpointing
from labs.lab_11_checkpointing import Checkpoints, Refused, fingerprint
from shared.runtime.errors import InputError
from shared.training.checkpoint import load_checkpoint, save_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "new folder" / "run.pt"
    save_atomically({"step": 3, "weight": torch.arange(4.0)}, path)
    return path


def test_what_is_saved_is_loaded(path: Path):
    content = load_checkpoint(path)
    assert content["step"] == 3
    assert torch.equal(content["weight"], torch.arange(4.0))
    assert [entry.name for entry in path.parent.iterdir()] == ["run.pt"]


def test_a_save_that_fails_leaves_the_last_checkpoint(path: Path):
    with pytest.raises((AttributeError, TypeError)):
        save_atomically({"step": 4, "no value": lambda: None}, path)
    assert load_checkpoint(path)["step"] == 3


def test_a_checkpoint_that_is_not_there_is_told_in_one_line(path: Path):
    path.unlink()
    with pytest.raises(InputError, match="run.pt: there is no such checkpoint"):
        load_checkpoint(path)


class HalfUsed(nn.Module):
    """Its second layer never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def checkpoints_of(model: nn.Module, folder: Path, **more: object) -> Checkpoints:
    optimizer = torch.optim.AdamW(model.parameters())
    return Checkpoints(folder, {}, dist.new_group(backend="gloo"), model, optimizer, **more)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_optimizer_is_restored_with_gradients_about_and_a_layer_that_never_had_one(
    tmp_path: Path, one_rank: None
):
    saver = checkpoints_of(HalfUsed(), tmp_path)
    for _ in range(3):
        saver.model(torch.ones(2, 3)).sum().backward()
        saver.optimizer.step()
    assert saver.finish(3)
    take = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    asked = subprocess.run([sys.executable, "-c", take, tmp_path / ".lock"], capture_output=True)
    assert b"BlockingIOError" in asked.stderr  # another process: this one holds the lock
    saver.lock.close()
    resumed = checkpoints_of(HalfUsed(), tmp_path)
    resumed.model(torch.ones(2, 3)).sum().backward()
    assert resumed.resume() == 3
    saved, ours = (one.optimizer.state_dict()["state"] for one in (saver, resumed))
    assert saved.keys() == ours.keys() == {0, 1}
    for number, state in saved.items():
        assert torch.equal(state["exp_avg"], ours[number]["exp_avg"])


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_disk_that_always_fails_stops_the_run(
    stop_after: int, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
):
    tried = []

    def fail(writer: object, plan: object, planner: object) -> None:
        tried.append(plan)
        raise OSError("planted")

    monkeypatch.setattr(lab_11_checkpointing.CommittingWriter, "write_data", fail)
    monkeypatch.setattr(lab_11_checkpointing, "AGAIN_S", 0.0)
    saver = checkpoints_of(HalfUsed(), tmp_path, stop_after=stop_after)
    for step in range(1, stop_after + 1):
        saver.save(step)
    with pytest.raises(Refused, match=f"{stop_after} saves before that have failed, too"):
        saver.save(stop_after + 1)
    assert len(tried) == stop_after + 2  # the last step is tried twice
    assert not saver.finish(stop_after + 2)


def test_states_that_differ_in_one_element_have_other_fingerprints():
    zeros, one = np.zeros(5000), np.zeros(5000)
    one[2500] = 1.0  # in the middle, which repr leaves out
    assert fingerprint({"table": zeros}) == fingerprint({"table": zeros.copy()})
    assert fingerprint({"table": zeros}) != fingerprint({"table": one})
