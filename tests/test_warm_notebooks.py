"""Which commands of a notebook are answered warm under nbmake, and that a failure is torchrun's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import SCRIPTS, environment
from tests.warm_notebooks import CHOICE, SOCKET, Server, WarmNotebooks, job_of

GOOD = """
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("ranks:", dist.get_world_size())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    path = tmp_path / "labs" / "lab.py"
    path.parent.mkdir()
    path.write_text(GOOD, encoding="utf-8")
    return path


def asked(lab: Path, *arguments: str, **more: str):
    return job_of([*arguments], lab.parent, environment(**more))


def test_a_plain_launch_becomes_a_job(lab: Path):
    job = asked(lab, "--standalone", "--nproc-per-node=3", "lab.py", "--steps", "2", COLOUR="red")
    assert (job.script, job.ranks, list(job.arguments)) == (lab, 3, ["--steps", "2"])
    assert job.folder == lab.parent
    assert job.environment["COLOUR"] == "red"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--help",),
        ("--standalone", "lab.py"),
        ("--standalone", "--nproc-per-node=two", "lab.py"),
        ("--standalone", "--nproc-per-node=0", "lab.py"),
        ("--standalone", "--nproc-per-node=2", "--max-restarts=1", "lab.py"),
        ("--nnodes=2", "--nproc-per-node=2", "lab.py"),
        ("--standalone", "--nproc-per-node=2", "no_such_lab.py"),
    ],
)
def test_anything_else_is_torchrun_s(arguments: tuple[str, ...], lab: Path):
    assert asked(lab, *arguments) is None


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG", "GLOO_SOCKET_IFNAME"])
def test_what_torch_reads_at_its_import_is_torchrun_s(name: str, lab: Path):
    command = ("--standalone", "--nproc-per-node=2", "lab.py")
    assert asked(lab, *command) is not None
    assert asked(lab, *command, **{name: "7"}) is None


def test_the_first_lab_of_each_kernel_is_torchrun_s(
    tmp_path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "tests.warm_notebooks.run_jobs", lambda _: [subprocess.CompletedProcess([], 0, "said\n")]
    )
    with Server(tmp_path) as server:
        command = ["--standalone", "--nproc-per-node=2", "lab.py"]
        for kernel in ("a", "b"):
            variables = environment(RANK_BY_RANK_RESULTS=kernel)
            assert not server.answer(command, str(lab.parent), variables)["warm"]
            assert server.answer(command, str(lab.parent), variables) == {"warm": True, "output": "said\n"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere notebooks are launched by torchrun alone")
def test_a_shell_gets_what_torchrun_says_and_a_failure_is_torchrun_s_own(
    lab: Path, monkeypatch: pytest.MonkeyPatch
):
    import pexpect

    monkeypatch.setenv(CHOICE, "warm")
    monkeypatch.delenv(SOCKET, raising=False)
    warm = WarmNotebooks()
    warm.start()
    try:
        scripts = str(Path(sys.executable).parent)
        variables = environment() | {
            "BASH_ENV": str(SCRIPTS / "warm_torchrun.sh"),
            "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
            "RANK_BY_RANK_RESULTS": "a kernel",
        }

        def shell(command: str) -> tuple[str, int]:
            return pexpect.run(
                f"bash -c '{command}'", cwd=str(lab.parent), env=variables, timeout=300, withexitstatus=True
            )

        warm.server.known_kernels.add("a kernel")
        said, code = shell("torchrun --standalone --nproc-per-node=3 lab.py")
        assert (said.decode().split("\r\n"), code) == (["ranks: 3", ""], 0)
        lab.write_text(f"{GOOD}\nraise SystemExit(3)\n", encoding="utf-8")
        said, code = shell("torchrun --standalone --nproc-per-node=2 lab.py")
        assert code == 1
        assert b"exitcode  : 3" in said  # torchrun's report
        assert said.count(b"ranks: 2") == 1
        shell("torchrun --standalone --nproc-per-node=2 lab.py > said.txt 2>&1")
        assert "exitcode  : 3" in (lab.parent / "said.txt").read_text(encoding="utf-8")
    finally:
        warm.stop()
    assert SOCKET not in os.environ
