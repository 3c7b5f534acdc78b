"""Launches by forks are as torchrun's, and each way in which a job can fail is noticed."""

import json
import signal
from pathlib import Path

import pytest

from shared.runtime.children import is_running
from tests.helpers import Done, python, torchrun
from tests.launch import TIMED_OUT, Job, run_job
from tests.sleeping_lab import wait_until

pytestmark = pytest.mark.slow

STARTED = """
import os, signal, subprocess, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, here = dist.get_rank(), Path(__file__).parent
numbers = torch.ones(3) * (rank + 1)
dist.all_reduce(numbers)
sys.stdout.write(f"rank {rank}: {numbers.tolist()}\\n")  # in one write: lines of two ranks do not mix
"""
GOOD = f"{STARTED}\ndist.destroy_process_group()\n"


def script(folder: Path, code: str) -> Path:
    path = folder / "job.py"
    path.write_text(code, encoding="utf-8")
    return path


def launched(folder: Path, code: str, **options) -> Done:
    return run_job(Job(script(folder, code), **options))


def assert_the_next_job_is_unharmed(folder: Path) -> None:
    done = launched(folder, GOOD, ranks=3)
    assert done.returncode == 0, done.stdout
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: [6.0, 6.0, 6.0]" for rank in range(3)]


def test_an_exit_code_is_handed_on(tmp_path: Path):
    assert launched(tmp_path, f"{STARTED}\nif rank == 1: sys.exit(3)").returncode == 3
    assert_the_next_job_is_unharmed(tmp_path)


def test_an_error_is_shown_and_ends_the_other_ranks(tmp_path: Path):
    code = f'{STARTED}\nif rank == 0: raise ValueError("planted")\ntime.sleep(600)'
    done = launched(tmp_path, code, ranks=4)
    assert done.returncode == 1
    assert f'File "{tmp_path / "job.py"}", line 12, in <module>' in done.stdout
    assert "ValueError: planted" in done.stdout
    assert_the_next_job_is_unharmed(tmp_path)


def test_a_job_that_hangs_is_ended(tmp_path: Path):
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("asleep", flush=True)
time.sleep(600 * int(os.environ["RANK"]))
"""
    done = launched(tmp_path, code, limit_s=15.0)
    assert done.returncode == TIMED_OUT
    assert "asleep" in done.stdout
    assert "ended after 15 s: still at work: rank 1\n" in done.stdout
    assert_the_next_job_is_unharmed(tmp_path)


def test_a_signal_is_handed_on(tmp_path: Path):
    code = f"{STARTED}\nif rank == 1: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(600)"
    assert launched(tmp_path, code).returncode == -signal.SIGSEGV
    assert_the_next_job_is_unharmed(tmp_path)


@pytest.mark.parametrize("session", [False, True], ids=["in the rank's session", "in its own session"])
def test_what_a_job_leaves_behind_is_ended(session: bool, tmp_path: Path):
    """A child of rank 1, and a grandchild whose parent has ended before."""
    code = f"""{STARTED}
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
if rank == 1:
    child = subprocess.Popen(sleeps, start_new_session={session})
    between = os.fork()
    if not between:
        grandchild = subprocess.Popen(sleeps, start_new_session={session})
        (here / "grandchild").write_text(str(grandchild.pid))
        os._exit(0)
    os.waitpid(between, 0)
    (here / "child").write_text(str(child.pid))
    assert child.poll() is None
"""
    done = launched(tmp_path, code)
    assert done.returncode == 0, done.stdout
    for name in ("child", "grandchild"):
        pid = int((tmp_path / name).read_text(encoding="utf-8"))
        wait_until(lambda pid=pid: not is_running(pid), f"the {name} is gone")
    assert_the_next_job_is_unharmed(tmp_path)


ALIKE = """
import json
import os
import sys
import threading
import __main__

class Own:
    pass

inherited = ("GROUP_", "LOCAL_", "MARK", "MASTER_", "OMP_", "PYTEST", "RANK", "ROLE_", "TORCH", "WORLD_")
environment = {name: value for name, value in os.environ.items() if name.startswith(inherited)}
for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
    environment[name] = "set, not the same in two launches" if environment[name] else ""
found = {
    "environment": environment,
    "arguments": sys.argv,
    "path": sys.path,
    "flags": str(sys.flags),
    "module": [__main__.Own is Own, __main__.__file__, __name__],
    "folder": os.getcwd(),
    "streams": [sys.stdout.write_through, sys.stdout.encoding, sys.stderr.encoding],
    "threads": threading.active_count(),
    "leads a session": os.getsid(0) == os.getpid(),
}
sys.stdout.write(json.dumps(found) + "\\n")
"""


def by_rank(done: Done) -> dict[str, dict]:
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return {report["environment"].pop("RANK"): report for report in reports}


def test_a_rank_finds_what_torchrun_gives_it(tmp_path: Path):
    path = script(tmp_path, ALIKE)
    variables = {"MARK": "mark", "PYTHONPATH": str(tmp_path / "modules")}
    real = torchrun(path, "--answer", "x y", ranks=3, cwd=tmp_path, **variables)
    ours = run_job(Job(path, ("--answer", "x y"), ranks=3, folder=tmp_path, environment=variables))
    assert (real.returncode, ours.returncode) == (0, 0), ours.stdout
    assert by_rank(ours) == by_rank(real)


def test_neighbours_share_nothing_by_accident(tmp_path: Path):
    """Otherwise the order of a set would be the same on every rank, and an answer that relies on it right."""
    code = """
import os
import random
import sys
import numpy
values = [os.environ["RANK"], hash("word"), id(object()), numpy.random.rand(), random.random()]
sys.stdout.write(" ".join(map(str, values)) + "\\n")
"""
    rows = {}
    for line in launched(tmp_path, code, ranks=4).stdout.splitlines():
        rank, *values = line.split()
        rows[int(rank)] = values
    for rank in range(3):
        assert all(mine != theirs for mine, theirs in zip(rows[rank], rows[rank + 1], strict=True))
    draws = [tuple(values[2:]) for values in rows.values()]
    assert len(set(draws)) == 4


def test_no_rank_outlives_pytest(tmp_path: Path):
    code = f"""{STARTED}
(here / f"rank {{rank}}").write_text(str(os.getpid()))
dist.barrier()
os.kill(int((here / "pytest").read_text()), signal.SIGKILL)
time.sleep(600)
"""
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"""
import os
from pathlib import Path
from tests.launch import Job, run_job
if __name__ == "__main__":
    Path({str(tmp_path / "pytest")!r}).write_text(str(os.getpid()))
    run_job(Job(Path({str(script(tmp_path, code))!r})))
""",
        encoding="utf-8",
    )
    assert python(driver).returncode == -signal.SIGKILL
    for rank in range(2):
        pid = int((tmp_path / f"rank {rank}").read_text(encoding="utf-8"))
        wait_until(lambda pid=pid: not is_running(pid), "a rank is gone")
