"""Machines on this machine: each has a name, an address, processes of its own, and a cable of a known speed.

A host is a process in namespaces of its own. When it ends, the kernel ends all that runs on this host and
removes its network. So nothing is left behind, however this process ends. Linux only.

Run it:  python labs/lesson_27/hosts.py
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from shared.runtime.errors import CourseError, InputError
from shared.runtime.run import die_with_launcher, run

from lesson_27 import needs
from lesson_27.cable import MTU, Cables, Ports
from lesson_27.needs import AS_ROOT, OWN_SPACES

NAMES = ("node-a", "node-b", "node-c", "node-d")
BUCKET = 32 * 1024  # bytes that a host may send at once after a rest
HEADERS = 14 + 20 + 32  # bytes of Ethernet, IP and TCP with time stamps, in each packet
LONGEST_SEGMENT = MTU + 14 - HEADERS
SWITCH_ON = """
set -e
hostname "$0"
mount --bind "$1" /etc/hosts
[ ! -e /etc/resolv.conf ] || mount --bind "$2" /etc/resolv.conf
ip link set lo up
echo is up
exec cat
"""


@dataclass(frozen=True)
class Config:
    hosts: int = 2
    mbit: int = 100
    size: int = 1_000_000  # bytes
    off: int = 500  # bytes by which the count may differ: packets that open and close have other headers


def run_with_hosts(
    name: str, main: Callable, cfg: object, *arguments: str, need: Callable[[], str | None] = needs.hosts
) -> None:
    """``run(main, cfg, *arguments)`` if this machine has what ``need`` asks for; else say what is missing.

    A user who is not root becomes root of a user namespace.
    """
    reason = need()
    if reason:
        run(needs.tell, name, reason)
    if os.geteuid() != 0:
        os.execvp(AS_ROOT[0], [*AS_ROOT, sys.executable, *sys.orig_argv[1:]])
    run(main, cfg, *arguments)


@dataclass(frozen=True)
class Host:
    """A machine that is on. ``pid`` is its first process, as seen from outside."""

    name: str
    address: str
    process: subprocess.Popen
    pid: int

    def inside(self, *command: str | Path, spaces: Sequence[str] = OWN_SPACES) -> list[str]:
        """The command that runs ``command`` on this host, in the working directory of this process."""
        enter = ["nsenter", f"--target={self.pid}", *spaces, f"--wd={Path.cwd()}", "--"]
        return [*enter, *map(str, command)]

    def ask(self, *command: str | Path, spaces: Sequence[str] = OWN_SPACES) -> str:
        """What a short command says on this host.

        Raises:
            CourseError: it failed.
        """
        done = subprocess.run(
            self.inside(*command, spaces=spaces),
            capture_output=True,
            text=True,
            env=needs.with_system_tools(),
        )
        if done.returncode != 0:
            words = " ".join(map(str, command))
            raise CourseError(f"{self.name}: {words}: {done.stderr.strip()}")
        return done.stdout

    def enter(self, *kinds: str) -> None:
        """Move this process, which must have one thread, to the host's network, name and files.

        Or to some of these spaces: "net", "uts", "mnt".
        """
        libc = ctypes.CDLL(None, use_errno=True)
        for kind in kinds or ("net", "uts", "mnt"):
            descriptor = os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY)
            if libc.setns(descriptor, 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns to {kind} of {self.name}")
            os.close(descriptor)

    def set_rate(self, mbit: int) -> None:
        """How fast this host can send; 0: as fast as it goes. A bucket of tokens: tc-tbf(8)."""
        if mbit:
            limit = ["tbf", "rate", f"{mbit}mbit", "burst", str(BUCKET), "latency", "50ms"]
        else:
            limit = ["noqueue"]
        self.ask("tc", "qdisc", "replace", "dev", "eth0", "root", *limit)

    def switch_off(self) -> None:
        """As if somebody pulled the plug. Afterwards every process on it is gone: the kernel ends them."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.process.wait()


def sent(first_process: int = 1) -> int:
    """Bytes that a host's network card has sent until now, without the headers of TCP, IP and Ethernet.

    To itself, a host's first process is number 1; from outside, it is ``host.pid``.
    """
    lines = Path(f"/proc/{first_process}/net/dev").read_text(encoding="utf-8").splitlines()
    (card,) = [line.split() for line in lines if line.strip().startswith("eth0:")]
    size, packets = int(card[9]), int(card[10])
    return size - HEADERS * packets


def sent_again() -> int:
    """Bytes at most that TCP has sent more than once on this host, because no answer came in time."""
    lines = Path("/proc/1/net/snmp").read_text(encoding="utf-8").splitlines()
    names, values = [line.split() for line in lines if line.startswith("Tcp:")]
    return LONGEST_SEGMENT * int(values[names.index("RetransSegs")])


@dataclass(frozen=True)
class Network:
    hosts: list[Host]
    switch: Host

    def set_rate(self, mbit: int) -> None:
        for host in self.hosts:
            host.set_rate(mbit)

    def set_link(self, number: int, state: str) -> None:
        """Plug the cable of a host in, "up", or out, "down", at the switch."""
        self.switch.ask("ip", "link", "set", f"port{number}", state, spaces=["--net"])


def switch_on(name: str, address: str, folder: Path) -> Host:
    """Start the first process of a host, in its own namespaces. It does nothing, and dies with this one."""
    spaces = ["unshare", *OWN_SPACES, "--fork", "--kill-child", "--mount-proc"]
    process = subprocess.Popen(
        [*spaces, "sh", "-c", SWITCH_ON, name, folder / "hosts", folder / "resolv.conf"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,  # when the host is switched off, some versions of unshare complain
        env=needs.with_system_tools(),
        start_new_session=True,  # Ctrl-C is for this process; it then ends the hosts
        preexec_fn=die_with_launcher,
    )
    if process.stdout.readline() != b"is up\n":
        raise CourseError(f"{name} did not come up: {process.stderr.read().decode().strip()}")
    (first,) = psutil.Process(process.pid).children()
    return Host(name, address, process, first.pid)


@contextmanager
def network(count: int, mbit: int = 0, open_ports: Ports | None = None) -> Iterator[Network]:
    """``count`` hosts on a switch. At the end, all that runs on them is ended.

    With ``open_ports``, a firewall between the hosts lets TCP connections to no other ports through.
    """
    if not 1 <= count <= len(NAMES):
        raise InputError(f"there can be 1 to {len(NAMES)} hosts, not {count}")
    with ExitStack() as at_the_end:
        folder = Path(at_the_end.enter_context(tempfile.TemporaryDirectory()))
        addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        lines = [f"{address} {name}\n" for address, name in zip(addresses, NAMES, strict=False)]
        (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]), encoding="utf-8")
        (folder / "resolv.conf").write_text("", encoding="utf-8")  # no name server
        switch = switch_on("switch", "", folder)
        at_the_end.callback(switch.switch_off)
        hosts = []
        for name, address in zip(NAMES, addresses, strict=False):
            hosts.append(switch_on(name, address, folder))
            at_the_end.callback(hosts[-1].switch_off)
        if open_ports is not None:
            enter = [partial(host.enter, "net") for host in hosts]
            at_the_end.callback(Cables(enter, open_ports).close)
            for host in hosts:
                host.ask("ip", "link", "set", "eth0", "mtu", str(MTU))
                set_address(host)
        else:
            switch.ask("ip", "link", "add", "bridge", "type", "bridge")
            switch.ask("ip", "link", "set", "bridge", "up")
            for number, host in enumerate(hosts):
                plug_in(host, switch, f"port{number}")
                set_address(host)
        together = Network(hosts, switch)
        together.set_rate(mbit)
        yield together


def plug_in(host: Host, switch: Host, port: str) -> None:
    """A cable between the host's card, eth0, and a port of the switch."""
    cable = ["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
    switch.ask(*cable, spaces=["--net"])  # not --pid: the number of a process is that of outside
    switch.ask("ip", "link", "set", port, "master", "bridge", "up")


def set_address(host: Host) -> None:
    host.ask("ip", "link", "set", "eth0", "addrgenmode", "none")  # no IPv6
    host.ask("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
    host.ask("ip", "link", "set", "eth0", "up")


LISTEN = """
import socket
server = socket.create_server(("", 5000))
print("listens", flush=True)
connection = server.accept()[0]
received = 0
while data := connection.recv(2**20):
    received += len(data)
print(received)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


def send_bytes(sender: Host, receiver: Host, size: int) -> int:
    """Send bytes from one host to the other by plain TCP; returns how many the sender's card has sent."""
    python = [sys.executable, "-c"]
    with subprocess.Popen(receiver.inside(*python, LISTEN), stdout=subprocess.PIPE, text=True) as listener:
        listener.stdout.readline()
        before = sent(sender.pid)
        sender.ask(*python, SEND, receiver.name, str(size))
        arrived = int(listener.stdout.readline())
    if arrived != size:
        raise CourseError(f"{arrived:,} of {size:,} bytes arrived")
    return sent(sender.pid) - before


def main(cfg: Config) -> None:
    with network(cfg.hosts, cfg.mbit) as net:
        for host in net.hosts:
            name = host.ask("hostname").strip()
            first = host.ask("cat", "/proc/1/comm").strip()
            cards = [line.split()[0].split("@")[0] for line in host.ask("ip", "-brief", "link").splitlines()]
            if name != host.name or first != "cat" or cards != ["lo", "eth0"]:
                raise CourseError(f"{host.name} is {name}, its first process {first}, its cards {cards}")
            print(
                f"{name}: address {host.address}, network cards {' and '.join(cards)}, processes of its own"
            )
        at_the_card = send_bytes(net.hosts[0], net.hosts[1], cfg.size)
        if abs(at_the_card - cfg.size) > cfg.off:
            raise CourseError(f"{cfg.size:,} bytes were sent, the network card has counted {at_the_card:,}")
        print(f"{cfg.size:,} bytes went from {NAMES[0]} to {NAMES[1]}, as its network card has counted")


if __name__ == "__main__":
    run_with_hosts("lesson_27_hosts", main, Config())
