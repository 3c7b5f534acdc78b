"""Lesson 13: its labs read processes and logs right."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from shared.runtime.loading import load_file
from shared.runtime.ports import HERE, free_port
from shared.training.launches import Launch, attempts_in, newest
from tests.helpers import HANG_S, ROOT, environment
from tests.launch import Job, run_job
from tests.sleeping_lab import wait_until

LABS = ROOT / "labs"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


STEP = '{{"step": {}, "loss": 1.0}}\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (STEP.format(1) + STEP.format(2), [(0, 2)]),
        (STEP.format(1) + '{"step": 2, "los', [(0, 1)]),  # rank 0 was killed while it wrote
        (STEP.format(9) + "resuming from step_00000007\n", [(0, 9), (7, 7)]),
        (STEP.format(9) + "resuming from step_00000007\n" + STEP.format(8), [(0, 9), (7, 8)]),
        (STEP.format(1) + STEP.format(2) + STEP.format(1), [(0, 2), (0, 1)]),  # no checkpoint yet
        ('{"epoch": 1, "accuracy": 0.9}\nnot JSON\n' + STEP.format(3), [(0, 3)]),
    ],
)
def test_attempts_are_read_from_what_rank_0_wrote(text: str, expected: list):
    assert [(attempt.first, attempt.last) for attempt in attempts_in(text)] == expected


def test_a_save_that_was_not_finished_does_not_count(tmp_path: Path):
    assert newest(tmp_path / "none") == 0
    for name in ("step_00000007", "step_00000014", "step_00000021.part"):
        (tmp_path / name).mkdir()
    assert newest(tmp_path) == 14


@pytest.mark.parametrize("error", [psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess])
def test_a_rank_whose_environment_may_not_be_read_yet_is_found_later(
    error: type[psutil.Error], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    launch = Launch("two", ["sh", "-c", "RANK=0 sleep 600 & RANK=1 sleep 600 & wait"], tmp_path)
    try:
        wait_until(lambda: len(launch.running()) == 2, "both ranks are seen")
        launch.ranks.clear()

        def refuse(process: psutil.Process) -> dict[str, str]:
            raise error(process.pid)

        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "environ", refuse)
            assert launch.running() == []
        assert [rank.number for rank in launch.running()] == [0, 1]
    finally:
        for rank in launch.running():
            psutil.Process(rank.pid).kill()
        launch.process.wait(HANG_S)


def start_agent(node: int, port: int, log: Path, checkpoint: Path) -> subprocess.Popen:
    """torchrun of one machine of two, as lesson 27 starts it."""
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={HERE}:{port}", f"--rdzv-id={port}"]
    own = [f"--local-addr=127.0.0.{1 + node}", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=1"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *meet,
        *own,
        LABS / "lab_13_restart.py",
        checkpoint,
    ]
    told = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    with log.open("w") as output:
        return subprocess.Popen(command, env=told, stdout=output, stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_the_plain_lab_restarts_on_two_agents_and_a_new_launch_finds_its_checkpoint(tmp_path: Path):
    port, checkpoint = free_port(), tmp_path / "run.pt"
    logs = [tmp_path / f"{node}.log" for node in (0, 1)]
    agents = [start_agent(node, port, log, checkpoint) for node, log in enumerate(logs)]
    try:
        codes = [agent.wait(HANG_S) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    output = "".join(log.read_text(encoding="utf-8") for log in logs)
    assert codes == [0, 0], output
    assert [line for line in output.splitlines() if line.startswith("2 ranks")] == [
        "2 ranks train from step 0",
        "2 ranks train from step 10",
    ]
    assert "equal those of one process" in output
    again = run_job(Job(LABS / "lab_13_restart.py", [checkpoint], ranks=3))
    assert again.returncode == 0, again.stdout
    assert "3 ranks train from step 20" in again.stdout


def test_the_plain_lab_refuses_several_machines_with_one_store(monkeypatch: pytest.MonkeyPatch):
    lab = load_file(LABS / "lab_13_restart.py")
    told = {"RESTART_COUNT": "0", "USE_AGENT_STORE": "True"}
    for name, value in told.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        lab.store_of_this_attempt(rank=0)


@pytest.mark.parametrize("restarts", ["0", "2"])
def test_the_module_to_copy_refuses_them_too_if_ranks_can_be_restarted(
    restarts: str, monkeypatch: pytest.MonkeyPatch
):
    lab = load_file(LABS / "lab_13_stopping.py")
    monkeypatch.setattr(lab.dist, "TCPStore", lambda *where, **options: dist.HashStore())
    around = {"MASTER_ADDR": HERE, "MASTER_PORT": "1", "RANK": "1", "GROUP_WORLD_SIZE": "2"}
    around |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": restarts}
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    if restarts == "0":
        lab.store_of_this_attempt(timedelta(seconds=1))  # dead ranks' addresses cannot be in it
    else:
        with pytest.raises(lab.WrongStart, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
            lab.store_of_this_attempt(timedelta(seconds=1))
