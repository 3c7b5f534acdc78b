"""Lesson 15: two devices count what crosses and belong to one process; its labs notice planted faults."""

from pathlib import Path

import pytest
import torch

from shared.training.two_devices import ToyMpModel, TwoDevices
from tests.helpers import faulty_lab, python, torchrun


def test_each_process_has_two_devices_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK_BY_RANK_DEVICE", "cpu")
    pairs = [TwoDevices.of_process(local_rank, 4).numbers for local_rank in range(4)]
    assert pairs == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert str(TwoDevices.of_process(1, 4)) == "devices 2 and 3: simulated on one CPU"


@pytest.mark.parametrize(("gpus", "real"), [(8, True), (7, False), (0, False)])
def test_gpus_are_used_where_there_are_two_for_each_process(
    gpus: int, real: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RANK_BY_RANK_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    devices = TwoDevices.of_process(3, 4)
    assert devices.real == real
    wanted = ("cuda:6", "cuda:7") if real else ("cpu", "cpu")
    assert (str(devices.first), str(devices.second)) == wanted


def test_activations_and_their_gradients_cross():
    devices = TwoDevices(torch.device("cpu"), torch.device("cpu"), (0, 1))
    model = ToyMpModel(devices, hidden=3)
    model(torch.ones(5, 1, 8, 8)).sum().backward()
    assert devices.transfers == {("activations", 0, 1): 60, ("gradients of activations", 1, 0): 60}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lab", "old", "new", "told"),
    [
        ("two_devices", "torch.manual_seed(15)\n    model", "torch.manual_seed(16)\n    model", "differs by"),
        ("two_devices", "hidden = cfg.batch * 128", "hidden = cfg.batch * 64", "AssertionError"),
        ("two_devices", 'torch.device("meta")', "devices.first", "torch was to complain"),
        ("ddp", "slice(rank, None, world_size)", "slice(0, None, world_size)", "differs by"),
        (
            "ddp",
            "TwoDevices.of_process(local_rank",
            "TwoDevices.of_process(0",
            "two processes share a device",
        ),
        ("ddp", "wrap(output_device=second)", "wrap()", "DDP(model, output_device=second): accepted"),
        ("idle", "device = int(number >= self.cut)", "device = 0", "AssertionError"),
        ("idle", "span.end = time.perf_counter()", "span.end = time.perf_counter() + 1", "worked at once"),
    ],
)
def test_a_planted_fault_is_noticed(lab: str, old: str, new: str, told: str, tmp_path: Path):
    path = faulty_lab(f"15_{lab}", old, new, tmp_path)
    run = torchrun if lab == "ddp" else python
    done = run(path, RANK_BY_RANK_RESULTS=str(tmp_path))
    assert done.returncode == 1
    assert told in done.stdout
