"""What ``notebook.setup()`` sets for the commands of a notebook."""

import os

import pytest
import torch

from shared.runtime import notebook
from tests.helpers import ROOT


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of this process, as a copy that the test may change."""
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    copy = {**kept, "RANK_BY_RANK_RESULTS": "results"}
    monkeypatch.setattr(os, "environ", copy)
    return copy


def test_a_forced_cpu_hides_the_gpus_from_plain_labs(variables: dict[str, str]):
    variables["RANK_BY_RANK_DEVICE"] = "cpu"
    notebook._set_environment(ROOT)
    assert variables["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("gpus", "said"), [(0, ""), (3, "commands here see 3 GPUs: the labs run on the CPU"), (4, "")]
)
def test_with_fewer_gpus_than_ranks_a_notebook_takes_the_cpu_and_says_so(
    gpus, said, variables, monkeypatch, capsys
):
    variables.pop("RANK_BY_RANK_DEVICE", None)
    monkeypatch.setattr(notebook, "_count_gpus", lambda: gpus)
    notebook._set_environment(ROOT)
    out = capsys.readouterr().out
    assert said in out
    assert bool(out) == bool(said)
    assert (variables.get("RANK_BY_RANK_DEVICE") == "cpu") == bool(said)


def test_torch_counts_the_gpus_where_a_driver_is(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(notebook, "DRIVERS", (str(tmp_path),))
    assert notebook._count_gpus() == 3
    monkeypatch.setattr(notebook, "DRIVERS", (str(tmp_path / "none"),))
    assert notebook._count_gpus() == 0


@pytest.mark.parametrize("device", ["cuda", None])
def test_otherwise_the_gpus_stay_visible(device, variables, monkeypatch):
    monkeypatch.setattr(notebook, "_count_gpus", lambda: notebook.RANKS)
    variables.pop("RANK_BY_RANK_DEVICE", None)
    if device:
        variables["RANK_BY_RANK_DEVICE"] = device
    notebook._set_environment(ROOT)
    assert "CUDA_VISIBLE_DEVICES" not in variables


def test_commands_are_those_of_this_environment(variables: dict[str, str]):
    notebook._set_environment(ROOT)
    notebook._set_environment(ROOT)  # a second call changes nothing
    assert variables["PYTHONPATH"].split(os.pathsep).count(str(ROOT)) == 1
    assert variables["PYTHONPATH"].startswith(str(ROOT))
    assert variables["SHELLOPTS"] == "pipefail"
    assert variables["OMP_NUM_THREADS"]
