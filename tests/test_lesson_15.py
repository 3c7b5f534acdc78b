"""Lesson 15: two devices count what crosses and belong to one process."""

import pytest
import torch

from shared.lesson_15.two_devices import ToyMpModel, TwoDevices


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
