"""Lesson 07: simulated devices count what crosses and add gradients up."""

from pathlib import Path

import pytest
import torch

from shared.runtime import results
from shared.training.simulated_devices import Link


def test_values_cross_one_way_and_gradients_the_other():
    link, p = Link(), torch.ones(3, dtype=torch.float64, requires_grad=True)
    sum(link.transfer("values", p, 0, device).sum() for device in range(3)).backward()
    assert p.grad.tolist() == [3.0] * 3
    assert link.transfers == {
        ("values", 0, 1): 24,
        ("values", 0, 2): 24,
        ("gradients of values", 1, 0): 24,
        ("gradients of values", 2, 0): 24,
    }
    assert link.through(0) == {"values": 48, "gradients of values": 48}
    assert link.through(2) == {"values": 24, "gradients of values": 24}


def test_on_one_simulated_device_nothing_crosses():
    link, tensor = Link(), torch.ones(3)
    assert link.transfer("values", tensor, 1, 1) is tensor
    assert not link.transfers


def test_what_comes_from_the_host_passes_only_where_it_goes():
    link = Link()
    link.transfer("inputs", torch.ones(3), -1, 0)
    link.transfer("inputs", torch.ones(3), -1, 1)
    assert (link.through(-1), link.through(0), link.through(1)) == (
        {"inputs": 24},
        {"inputs": 12},
        {"inputs": 12},
    )


def test_without_a_gradient_nothing_comes_back():
    link = Link()
    (link.transfer("inputs", torch.ones(3), 0, 1) * torch.ones(3, requires_grad=True)).sum().backward()
    assert link.through(0) == {"inputs": 12}


def test_a_lab_without_a_group_records_as_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK_BY_RANK_RESULTS", str(tmp_path))
    results.record_results("lab_90_alone", {"bytes": 7})
    assert results.load_results("lab_90_alone", 1) == [{"bytes": 7}]
