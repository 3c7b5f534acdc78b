"""Lesson 27: a Slurm of its own leaves nothing behind, however its lab ends, and a machine may have none."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runtime.children import is_running
from tests.helpers import HANG_S, ROOT, environment
from tests.sleeping_lab import processes_with, wait_until

from lesson_27 import needs, slurm
from lesson_27.job_script import options_of, tasks_per_node
from lesson_27.keeper import Keeper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses Linux's subreapers")
JOB_SCRIPT = ROOT / "labs" / "lab_27_train.sbatch"
DAEMON = """
import os, time

child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.waitpid(child, 0)  # when this program has ended, the daemon alone is left
"""


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    folder = tmp_path / "kept"
    folder.mkdir()
    keeper = Keeper(folder)
    yield keeper
    keeper.close()


def test_a_daemon_that_left_its_parents_is_ended_with_its_keeper(keeper: Keeper, tmp_path: Path):
    parent = keeper.start([sys.executable, "-c", DAEMON], tmp_path / "out", dict(os.environ))
    wait_until(lambda: not is_running(parent), "the parent has left")
    (daemon,) = keeper.below()
    keeper.close()
    assert not is_running(daemon.pid)
    assert not (tmp_path / "kept").exists()


def test_without_a_keeper_such_a_daemon_would_stay(tmp_path: Path):
    subprocess.run([sys.executable, "-c", DAEMON, tmp_path], check=True)
    left = processes_with(str(tmp_path))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) == 1


def test_a_program_that_is_not_there_is_told(keeper: Keeper, tmp_path: Path):
    with pytest.raises(slurm.CourseError, match="no-such-program could not be started: "):
        keeper.start(["no-such-program"], tmp_path / "out", dict(os.environ))


def test_a_machine_without_slurm_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(needs, "SYSTEM_TOOLS", str(tmp_path))
    expected = "slurmctld is not installed: as root, apt-get install --no-install-recommends slurm-wlm munge"
    assert needs.slurm() == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", (1, 1, False, "truncate")),
        ("#SBATCH --nodes=2 --ntasks-per-node=4  # with words", (2, 4, False, "truncate")),
        ("#SBATCH -N 2 -n 6 --open-mode=append --requeue", (2, 3, True, "append")),
        ("#SBATCH --requeue\n#SBATCH --no-requeue", (1, 1, False, "truncate")),
        ("#SBATCH --nodes=2\necho\n#SBATCH --requeue", (2, 1, False, "truncate")),
    ],
)
def test_the_lines_of_a_job_script_are_read_as_slurm_reads_them(lines: str, expected: tuple):
    options = options_of(f"#!/bin/bash\n{lines}\n")
    assert (options.nodes, tasks_per_node(options), options.requeue, options.open_mode) == expected


def test_the_job_script_of_the_lesson_starts_one_torchrun_on_each_node():
    text = JOB_SCRIPT.read_text(encoding="utf-8")
    options = options_of(text)
    assert (options.nodes, tasks_per_node(options), options.requeue) == (2, 1, True)
    assert options.open_mode == "append"
    assert options_of(text.replace("##SBATCH", "#SBATCH")).gpus_per_node == "8"


def test_the_notice_is_longer_than_torchrun_waits_and_slurm_kills():
    text = JOB_SCRIPT.read_text(encoding="utf-8")
    notice = int(text.partition("--signal=B:USR1@")[2].split()[0])
    longest_save = int(text.partition("LONGEST_SAVE:-")[2].partition("}")[0])
    assert notice > longest_save + slurm.KILL_WAIT_S


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_lab_that_is_stopped_leaves_no_daemon_no_job_and_no_folder(stop: signal.Signals, tmp_path: Path):
    reason = needs.slurm()
    if reason:
        pytest.skip(reason)
    mark = f"MARK_OF_THIS_TEST={tmp_path}"
    told = environment(MARK_OF_THIS_TEST=str(tmp_path), TMPDIR=str(tmp_path))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(
        [sys.executable, ROOT / "labs" / "lesson_27" / "requeue.py"], cwd=ROOT, env=told, **quiet
    ) as lab:
        try:
            wait_until(lambda: list(tmp_path.glob("*/train-*.log")), "the job runs")
            folders = [path.parent for path in Path("/tmp").glob("slurm-*/slurm.conf") if is_of(path, mark)]
            assert len(folders) == 1
            assert len(processes_with(mark)) > 6  # munged, slurmctld, three slurmd, the job
            lab.send_signal(stop)
            lab.wait(HANG_S)
            wait_until(lambda: not processes_with(mark), "no process is left")
            wait_until(lambda: not folders[0].exists(), "the folder is gone")
        finally:
            lab.kill()


def is_of(configuration: Path, mark: str) -> bool:
    """Whether a Slurm with this configuration runs for this test."""
    return any(str(configuration) in " ".join(words) for words in processes_with(mark).values())


@pytest.mark.slow
@pytest.mark.slow
def test_two_at_the_same_time_do_not_meet():
    reason = needs.slurm()
    if reason:
        pytest.skip(reason)
    with slurm.Slurm(["n1"]) as one, slurm.Slurm(["n1", "n2"]) as other:
        assert one.folder != other.folder
        number = one.submit("--wrap=true", folder=one.folder)
        one.until(lambda: one.state(number) == "COMPLETED", "the job's end")
        assert other.call("squeue", "--noheader") == ""
        assert len(other.processes_of("n2")) == 1
    assert not one.folder.exists()
    assert not other.folder.exists()


@pytest.mark.slow
@pytest.mark.slow
def test_a_taken_port_is_left_for_another_one(monkeypatch: pytest.MonkeyPatch):
    reason = needs.slurm()
    if reason:
        pytest.skip(reason)
    with slurm.Slurm(["n1"]) as first:
        lines = (first.folder / "slurm.conf").read_text(encoding="utf-8").splitlines()
        taken = next(int(line.partition("=")[2]) for line in lines if line.startswith("SlurmctldPort="))
        usual = slurm.free_ports
        given = [[taken, *usual(1)]]
        monkeypatch.setattr(slurm, "free_ports", lambda count: given.pop() if given else usual(count))
        with slurm.Slurm(["n1"]) as second:
            assert not given
            assert second.call("sinfo", "--noheader", "--format=%T").split() == ["idle"]
