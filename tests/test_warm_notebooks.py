"""Which commands of a notebook are answered by forks under nbmake, and that a failure is torchrun's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, SCRIPTS, environment
from tests.warm_notebooks import CHOICE, COLD, SOCKET, Server, WarmNotebooks, job_of

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


TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=3", "lab.py")


def asked(lab: Path, program: str, *arguments: str, **more: str):
    return job_of(program, [*arguments], lab.parent, environment(**more))


@pytest.mark.parametrize(("command", "ranks"), [(TORCHRUN, 3), (("python", "lab.py"), 0)])
def test_a_plain_launch_becomes_a_job(command: tuple[str, ...], ranks: int, lab: Path):
    job = asked(lab, *command, "--steps", "2", COLOUR="red")
    assert (job.script, job.ranks, list(job.arguments)) == (lab, ranks, ["--steps", "2"])
    assert job.folder == lab.parent
    assert job.environment["COLOUR"] == "red"


@pytest.mark.parametrize(
    "command",
    [
        ("torchrun",),
        ("torchrun", "--help"),
        ("torchrun", "--standalone", "lab.py"),
        ("torchrun", "--standalone", "--nproc-per-node=two", "lab.py"),
        ("torchrun", "--standalone", "--nproc-per-node=0", "lab.py"),
        ("torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "lab.py"),
        ("torchrun", "--nnodes=2", "--nproc-per-node=2", "lab.py"),
        ("torchrun", "--standalone", "--nproc-per-node=2", "no_such_lab.py"),
        ("python",),
        ("python", "-m", "json.tool"),
        ("python", "-c", "print()"),
        ("python", "no_such_lab.py"),
    ],
)
def test_anything_else_is_launched_for_real(command: tuple[str, ...], lab: Path):
    assert asked(lab, *command) is None


def test_a_lab_that_looks_at_its_launcher_is_launched_for_real(lab: Path):
    cold = lab.rename(lab.with_name(next(iter(COLD))))
    assert asked(lab, *TORCHRUN[:-1], cold.name) is None


def test_the_labs_that_look_at_their_launcher_exist():
    assert [name for name in COLD if not (ROOT / "labs" / name).is_file()] == []


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG", "GLOO_SOCKET_IFNAME", "PYTHON_EXEC"]
)
def test_what_is_read_before_a_lab_begins_is_launched_for_real(name: str, lab: Path):
    assert asked(lab, *TORCHRUN) is not None
    assert asked(lab, *TORCHRUN, **{name: "7"}) is None


@pytest.mark.parametrize("name", ["PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"])
def test_what_a_fork_follows_is_no_reason_for_torchrun(name: str, lab: Path):
    job = asked(lab, *TORCHRUN, **{name: "folder"})
    assert job.environment[name] == "folder"


def test_the_first_lab_of_each_kernel_is_torchrun_s(
    tmp_path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "tests.warm_notebooks.run_job", lambda _: subprocess.CompletedProcess([], 0, "said\n")
    )
    program, *arguments = TORCHRUN
    with Server(tmp_path) as server:
        for kernel in ("a", "b"):
            variables = environment(RANK_BY_RANK_RESULTS=kernel)
            assert not server.answer(program, arguments, str(lab.parent), variables)["warm"]
            again = server.answer(program, arguments, str(lab.parent), variables)
            assert again == {"warm": True, "output": "said\n", "errors": ""}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere notebooks are launched by torchrun alone")
def test_a_shell_gets_what_torchrun_says_and_a_failure_is_torchrun_s_own(
    lab: Path, monkeypatch: pytest.MonkeyPatch
):
    import pexpect

    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.delenv(SOCKET, raising=False)
    warm = WarmNotebooks()
    warm.start()
    try:
        scripts = str(Path(sys.executable).parent)
        variables = environment() | {
            "BASH_ENV": str(SCRIPTS / "warm_shell.sh"),
            "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
            "RANK_BY_RANK_RESULTS": "a kernel",
        }

        def shell(command: str) -> tuple[str, int]:
            return pexpect.run(
                f"bash -c '{command}'", cwd=str(lab.parent), env=variables, timeout=300, withexitstatus=True
            )

        warm.server.known_kernels.add("a kernel")
        output, code = shell("torchrun --standalone --nproc-per-node=3 lab.py")
        assert (output.decode().split("\r\n"), code) == (["ranks: 3", ""], 0)
        lab.write_text(f"{GOOD}\nimport sys\nprint('in passing', file=sys.stderr)\n", encoding="utf-8")
        output, code = shell("torchrun --standalone --nproc-per-node=1 lab.py > log; echo log: $(cat log)")
        assert (output.decode().split("\r\n"), code) == (["in passing", "log: ranks: 1", ""], 0)
        lab.write_text(f"{GOOD}\nraise SystemExit(3)\n", encoding="utf-8")
        output, code = shell("torchrun --standalone --nproc-per-node=2 lab.py")
        assert code == 1
        assert b"exitcode  : 3" in output  # torchrun's report
        assert output.count(b"ranks: 2") == 1
    finally:
        warm.stop()
    assert SOCKET not in os.environ
