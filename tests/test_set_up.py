"""What ``notebook.setup()`` sets for the commands of a notebook."""

import os

import pytest

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
    ("gpus", "said"), [(0, ""), (3, "this machine has 3: the labs run on the CPU"), (4, "")]
)
def test_with_fewer_gpus_than_ranks_a_notebook_takes_the_cpu_and_says_so(
    gpus, said, variables, monkeypatch, capsys
):
    variables.pop("RANK_BY_RANK_DEVICE", None)
    monkeypatch.setattr(notebook, "_count_gpus", lambda: gpus)
    notebook._set_environment(ROOT)
    assert capsys.readouterr().out.strip().endswith(said)
    assert (variables.get("RANK_BY_RANK_DEVICE") == "cpu") == bool(said)


@pytest.mark.parametrize("device", ["cuda", None])
def test_otherwise_the_gpus_stay_visible(device: str | None, variables: dict[str, str]):
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
