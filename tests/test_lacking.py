"""Lessons on a machine that lacks much: they are green, or skipped with a line that says what is missing."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers import LESSON_PATHS, ROOT, command

pytestmark = pytest.mark.slow

# As in a small container: little shared memory, one core, few open files, no network but the loopback, no
# IPv6, neither ip nor Slurm; and a folder for temporary files whose name has a blank and an umlaut.
SMALL_MACHINE = """
mount -t tmpfs -o size=64m tmpfs /dev/shm
ip link set lo up
for switch in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 > "$switch"; done
for program in ip slurmctld; do
  file=$(command -v "$program") && mount --bind /dev/null "$(readlink -f "$file")"
done
ulimit -n 256
exec taskset -c 0 "$@"
"""
LESSONS = ("00", "27")  # the first; namespaces and Slurm


def test_lessons_on_a_machine_that_lacks_much(tmp_path: Path):
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("unshare", "ip", "taskset")):
        pytest.skip("not run here: hiding parts of a machine needs root, unshare, ip and taskset")
    folder = tmp_path / "ein Tümpel"
    folder.mkdir()
    paths = [path for path in LESSON_PATHS if path.name[:2] in LESSONS]
    done = command(
        *("unshare", "--mount", "--net", "bash", "-ec", SMALL_MACHINE, "sh"),
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", *paths),
        cwd=ROOT,
        TMPDIR=str(folder),
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "not run here: the command ip was not found: install the package iproute2" in done.stdout
