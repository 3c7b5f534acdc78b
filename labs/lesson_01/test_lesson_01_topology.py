"""Lesson 01: reports that do not fit are noticed, and its job files print one table."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch.distributed as dist
import yaml

from shared.runtime.errors import CourseError
from shared.runtime.loading import load_file
from shared.runtime.ports import free_port
from tests.helpers import ROOT

from lesson_27 import needs, slurm

REPORTS = ROOT / "labs" / "lesson_01" / "proof_reports.py"
WHO = ROOT / "labs" / "lab_01_who.py"


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What 3 + 4 processes say, in a process that is rank 4 of 7."""
    monkeypatch.setattr(dist, "get_rank", lambda: 4)
    monkeypatch.setattr(dist, "get_world_size", lambda: 7)
    gathered = []
    for node, size in enumerate((3, 4)):
        for local_rank in range(size):
            rank = len(gathered)
            report = {"rank": rank, "local_rank": local_rank, "node": node, "nodes": 2, "pid": 100 + rank}
            gathered.append(report | {"world_size": 7, "local_world_size": size})
    return gathered


def test_reports_that_fit_are_accepted(reports: list[dict]):
    load_file(REPORTS).check(reports[4], reports)


@pytest.mark.parametrize(
    ("rank", "field", "value", "expected"),
    [
        (2, "rank", 1, "ranks count from 0"),
        (5, "local_rank", 1, "local ranks count from 0"),
        (4, "rank", 5, "the rank is what counting gives"),
        (0, "node", 1, "the rank is what counting gives"),
        (4, "nodes", 3, "each node has reported"),
        (6, "pid", 105, "each rank is a process of its own"),
        (4, "world_size", 8, "the group agrees"),
    ],
)
def test_reports_that_do_not_fit_are_told(
    rank: int, field: str, value: int, expected: str, reports: list[dict]
):
    reports[rank][field] = value
    with pytest.raises(CourseError, match=expected):
        load_file(REPORTS).check(reports[4], reports)


ROOM = ROOT / "labs" / "lesson_01"
TWO_BY_TWO = [f"rank {r} of 4: local rank {r % 2} on node {r // 2}" for r in range(4)]


def table_of(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("rank ")]


def job_file(name: str, folder: Path) -> Path:
    """A copy of a job file of the lesson that starts ``lab_01_who.py`` in place of ``train.py``."""
    text = (ROOM / name).read_text(encoding="utf-8").replace("train.py", str(WHO))
    copy = folder / name
    copy.write_text(text.replace("#SBATCH", "# SBATCH"), encoding="utf-8")
    return copy


@pytest.mark.slow
def test_the_file_for_slurm_starts_a_script_on_equal_and_unequal_nodes():
    reason = needs.slurm()
    if reason:
        pytest.skip(reason)
    with slurm.Slurm(slurm.ADDRESSES[:2]) as cluster:  # nodes of 4 cores each
        script = job_file("job_slurm.sh", cluster.folder)
        said = {}
        for tasks in (4, 7):
            options = ("--nodes=2", f"--ntasks={tasks}", f"--ntasks-per-node={-(-tasks // 2)}")
            files = (f"--output=out{tasks}", f"--error=err{tasks}")
            number = cluster.submit(*options, *files, str(script), folder=cluster.folder)
            cluster.until(lambda job=number: cluster.state(job) in slurm.ENDED, "the job's end")
            error = (cluster.folder / f"err{tasks}").read_text(encoding="utf-8")
            assert cluster.state(number) == "COMPLETED", error
            said[tasks] = table_of((cluster.folder / f"out{tasks}").read_text(encoding="utf-8"))
    places = [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1)]
    expected = [f"rank {r} of 7: local rank {here} on node {node}" for r, (here, node) in enumerate(places)]
    assert said == {4: TWO_BY_TWO, 7: expected}


def run_with(variables: dict[str, str], *command: str, folder: Path) -> subprocess.Popen:
    scripts = sysconfig.get_path("scripts")
    environment = os.environ | {"PATH": f"{folder}:{scripts}:{os.environ['PATH']}"} | variables
    return subprocess.Popen(
        command, env=environment, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
def test_the_file_for_ssh_prints_the_same_table(tmp_path: Path):
    """A stand-in for ssh drops the host and runs the command here."""
    stand_in = tmp_path / "ssh"
    stand_in.write_text('#!/bin/bash\nexec bash -c "$2"\n', encoding="utf-8")
    stand_in.chmod(0o755)
    script = job_file("job_ssh.sh", tmp_path)
    hosts = ("127.0.0.1", "localhost")
    variables = {"PER_NODE": "2", "PORT": str(free_port())}
    job = run_with(variables, "bash", str(script), *hosts, folder=tmp_path)
    output, _ = job.communicate(timeout=180)
    assert job.returncode == 0, output
    assert table_of(output) == TWO_BY_TWO


@pytest.mark.slow
def test_a_failure_on_one_machine_is_the_exit_code_of_the_file_for_ssh(tmp_path: Path):
    stand_in = tmp_path / "ssh"
    stand_in.write_text('#!/bin/bash\n[ "$1" = good ]\n', encoding="utf-8")
    stand_in.chmod(0o755)
    script = job_file("job_ssh.sh", tmp_path)
    codes = {}
    for hosts in (("good", "good"), ("good", "bad"), ("bad", "good")):
        codes[hosts] = run_with({}, "bash", str(script), *hosts, folder=tmp_path).wait(timeout=60)
    assert list(codes.values()) == [0, 1, 1]


@pytest.mark.slow
def test_the_file_for_kubernetes_prints_the_same_table(tmp_path: Path):
    """Without Kubernetes: the container's command with its variables, once for each pod."""
    documents = list(yaml.safe_load_all((ROOM / "job_kubernetes.yaml").read_text(encoding="utf-8")))
    service, job = documents
    name = service["metadata"]["name"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    here = {f"{name}-0.{name}": "127.0.0.1", "29400": str(free_port()), "4": "2"}
    pods = []
    for index in range(job["spec"]["completions"]):
        variables = {}
        for entry in container["env"]:
            value = entry.get("value", str(index))  # the only one without a value is the pod's number
            variables[entry["name"]] = here.get(value, value)
        command = [word.replace("train.py", str(WHO)) for word in container["command"]]
        pods.append(run_with(variables, *command, folder=tmp_path))
    output = "".join(pod.communicate(timeout=180)[0] for pod in pods)
    assert [pod.returncode for pod in pods] == [0, 0], output
    assert table_of(output) == TWO_BY_TWO
