"""What lesson 27 needs of this machine: asked before anything is started, by its programs and its tests.

Each question is answered by None, or by one line that says what is missing and what to do.
"""

import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from shared.runtime.ports import HERE
from shared.runtime.results import record_results

NOT_RUN = "not run here"
SYSTEM_TOOLS = os.pathsep.join(["/usr/sbin", "/sbin"])  # not on every user's PATH
OWN_SPACES = ("--net", "--uts", "--mount", "--pid")  # network, host name, mounts, processes
AS_ROOT = ("unshare", "--user", "--map-root-user")  # root of a user namespace
TOOLS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
    "ip": "iproute2",
    "tc": "iproute2",
}
TUN = Path("/dev/net/tun")
TRIAL = """
hostname any
mount --bind /dev/null /etc/hosts
ip link add bridge type bridge
ip link add wire type veth peer name other
tc qdisc replace dev wire root tbf rate 100mbit burst 32kb latency 50ms
"""
DAEMONS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
PACKAGES = "slurm-wlm munge"  # of Debian and Ubuntu


def program(name: str) -> str | None:
    """Where a program is, also if it is one of the system's that a user's PATH does not name."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), SYSTEM_TOOLS]))


def hosts() -> str | None:
    """Why this machine cannot play several ones: each needs namespaces, a name and a network of its own."""
    if sys.platform != "linux":
        return "namespaces are Linux's: use a virtual machine or a container with Linux"
    for tool, package in TOOLS.items():
        if program(tool) is None:
            return f"the command {tool} was not found: install the package {package}"
    words = [*AS_ROOT] if os.geteuid() != 0 else []
    words += ["unshare", *OWN_SPACES, "--fork", "--mount-proc", "sh", "-ec", TRIAL]
    tried = subprocess.run(words, capture_output=True, text=True, env=with_system_tools())
    if tried.returncode == 0:
        return None
    reason = "".join(tried.stderr.strip().splitlines()[-1:]) or f"exit code {tried.returncode}"
    return f"making namespaces is not allowed ({reason}): be root, or start a container with --privileged"


def cables() -> str | None:
    """Why this machine cannot play several ones whose cables are processes of ours."""
    reason = hosts()
    if reason:
        return reason
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except OSError as error:
        return f"{TUN} cannot be opened ({error.strerror}): be root, or give the container this device"
    return None


def slurm() -> str | None:
    """Why this machine cannot run a Slurm of its own."""
    for name in DAEMONS:
        if program(name) is None:
            return f"{name} is not installed: as root, apt-get install --no-install-recommends {PACKAGES}"
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return f"Slurm wants to know this user by name, and number {os.getuid()} has none"
    try:
        socket.getaddrinfo(HERE, None, flags=socket.AI_ADDRCONFIG)
    except socket.gaierror:
        return "Slurm wants a network device beside the loopback one, and this machine has none"
    return None


def with_system_tools() -> dict[str, str]:
    """The environment, with the system's programs on its PATH."""
    return {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", ""), SYSTEM_TOOLS])}


def tell(name: str, reason: str) -> None:
    """Say in one line that a program was not run, and record that line as its result."""
    line = f"{NOT_RUN}: {reason}"
    print(line)
    record_results(name, {NOT_RUN: line})
