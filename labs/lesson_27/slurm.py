"""A Slurm of its own for one run: real daemons in a temporary folder, without root.

Nothing of a Slurm that this machine may have is used or changed. A node is a ``slurmd``; all run here.
Linux only.
"""

import contextlib
import os
import pwd
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_ports, is_taken

from lesson_27 import needs
from lesson_27.keeper import Keeper

POLL_S = 0.25  # each look starts a program
PATIENCE_S = 480.0
KILL_WAIT_S = 30  # Slurm's default
CREDENTIALS_S = 5
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")  # names of nodes that resolve everywhere
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")  # states of jobs
TRIES = 5  # with other ports each time
JOB_PORTS = range(20000, 29000)  # jobs take 20000 + number of the job modulo 9000

CONFIGURATION = """\
ClusterName=lesson
SlurmctldHost=localhost({here})
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={credentials}
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
ReturnToService=2
JobRequeue=0
KillWait={kill_wait}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
FirstJobId={first_job}
GresTypes=gpu
{nodes}
PartitionName=train Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


class Slurm:
    """Nodes with these names. Jobs whose programs resolve a node's name need names such as ``ADDRESSES``.

    Jobs find the programs of this Python first, and ``environment``. A node has ``gpus`` on paper only.
    ``kill_wait_s`` seconds pass from SIGTERM to SIGKILL, where Slurm ends something.
    A context: at its end, and also if this process is killed, all daemons and jobs are gone, and the folder.
    """

    def __init__(
        self,
        nodes: Sequence[str] = ADDRESSES,
        gpus: int = 0,
        kill_wait_s: int = KILL_WAIT_S,
        **environment: str,
    ) -> None:
        self.nodes = list(nodes)
        self.gpus = gpus
        self.kill_wait_s = kill_wait_s
        self.folder = Path()
        self.environment = environment
        self._keeper: Keeper | None = None  # while this Slurm runs
        self._daemons: dict[str, int] = {}

    def __enter__(self) -> "Slurm":
        for _ in range(TRIES):
            try:
                if self._start():
                    return self
            except BaseException:
                self.close()
                raise
            log = self._log("slurmctld")
            self.close()
        raise CourseError(f"{log}\nSlurm did not start in {TRIES} tries")

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        self._keeper = None

    def _running(self) -> Keeper:
        if self._keeper is None:
            raise CourseError("this Slurm does not run: use it as a context")
        return self._keeper

    # --- Daemons ---

    def _start(self) -> bool:
        """Start all daemons. False if one of them has ended: a port was taken meanwhile."""
        self.folder = Path(
            tempfile.mkdtemp(prefix="slurm-", dir="/tmp")
        )  # short: it is part of sockets' names
        self._keeper = Keeper(self.folder)
        configuration = self.folder / "slurm.conf"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        path = [str(Path(sys.executable).parent), needs.with_system_tools()["PATH"]]
        self.environment = {**kept, "PATH": os.pathsep.join(path), **self.environment}
        self.environment["SLURM_CONF"] = str(configuration)
        configuration.write_text(self._configuration(), encoding="utf-8")
        (self.folder / "state").mkdir()
        for number in range(self.gpus):
            (self.folder / f"gpu{number}").touch()
            with (self.folder / "gres.conf").open("a", encoding="utf-8") as devices:
                devices.write(f"Name=gpu File={self.folder}/gpu{number}\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        where = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemons = {"munged": self._daemon("munged", "--foreground", "--force", *where)}
        self.until((self.folder / "munge.socket").exists, "munged")
        self._daemons["slurmctld"] = self._daemon("slurmctld", "-D", "-f", str(configuration))
        for node in self.nodes:
            self._daemons[node] = self._daemon("slurmd", "-D", "-f", str(configuration), "-N", node)
        self.until(lambda: self._all_idle() or not self._all_run(), "all nodes to be idle")
        return self._all_run()

    def _configuration(self) -> str:
        port, *ports = free_ports(1 + len(self.nodes))
        gpus = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        lines = [
            f"NodeName={node} NodeHostname=localhost NodeAddr={HERE} Port={own} CPUs=4 RealMemory=2000{gpus}"
            for node, own in zip(self.nodes, ports, strict=True)
        ]
        user = pwd.getpwuid(os.getuid()).pw_name
        return CONFIGURATION.format(
            here=HERE,
            port=port,
            folder=self.folder,
            user=user,
            kill_wait=self.kill_wait_s,
            credentials=CREDENTIALS_S,
            first_job=_first_job(),
            nodes="\n".join(lines),
        )

    def _daemon(self, *command: str) -> int:
        name, *arguments = command
        output = self.folder / f"{name}.out"
        return self._running().start([needs.program(name) or name, *arguments], output, self.environment)

    def _all_run(self) -> bool:
        running = {process.pid for process in self._running().below()}
        return running.issuperset(self._daemons.values())

    def _all_idle(self) -> bool:
        done = self._run("sinfo", "--noheader", "--Node", "--partition=train", "--format=%T")
        return done.stdout.split() == ["idle"] * len(self.nodes)

    def _log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8")[-2000:] if path.is_file() else ""

    # --- Commands ---

    def _run(self, *command: str, folder: Path | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=folder or self.folder
        )

    def call(self, *command: str, folder: Path | None = None) -> str:
        """Run a command of Slurm; return what it prints. Raises ``CourseError`` if it fails."""
        done = self._run(*command, folder=folder)
        if done.returncode != 0:
            raise CourseError(f"{' '.join(command[:2])} failed: {done.stderr.strip()}")
        return done.stdout

    def submit(self, *arguments: str, folder: Path) -> str:
        """sbatch; returns the number of the job. Paths are relative to ``folder``."""
        return self.call("sbatch", "--parsable", *arguments, folder=folder).strip()

    def job(self, number: str) -> dict[str, str]:
        """What ``scontrol show job`` says: JobState, Reason, NodeList, Restarts, ExitCode, ..."""
        text = self.call("scontrol", "--oneliner", "show", "job", number)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def state(self, number: str) -> str:
        return self.job(number)["JobState"]

    def until(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > end:
                raise CourseError(f"{self._log('slurmctld')}\nwaited {patience_s:.0f} s for {what}")
            time.sleep(POLL_S)

    def start_now(self, number: str) -> None:
        """Spare a requeued job its wait in the queue, but not that for its old credentials to expire.

        They expire ``CREDENTIALS_S`` after the job was ended, by default 120 s. A start before is refused.
        """
        queued: list[float] = []  # when it was first seen in the queue again

        def may_start() -> bool:
            state = self.state(number)
            if not queued:
                if state in ENDED:
                    raise CourseError(f"the job is not queued again: {state}")
                if state == "PENDING":
                    queued.append(time.monotonic())
                return False
            return state != "PENDING" or time.monotonic() > queued[0] + CREDENTIALS_S + 1

        self.until(may_start, "the job to be in the queue again")
        self._run(
            "scontrol", "update", f"JobId={number}", "StartTime=now"
        )  # else Slurm has started it already

    # --- Nodes ---

    def processes_of(self, node: str) -> list[int]:
        """The daemon of a node, the processes that watch over jobs there (slurmstepd), and what jobs run."""
        running = self._running().below()
        tasks = [process for process in running if environment_of(process.pid).get("SLURMD_NODENAME") == node]
        parents = {_parent_of(task) for task in tasks}
        daemons = [process for process in running if process.pid in parents]
        watching = [daemon.pid for daemon in daemons if _name_of(daemon) == "slurmstepd"]
        return [self._daemons[node], *watching, *(task.pid for task in tasks)]

    def kill_node(self, node: str) -> None:
        """End all that runs on a node at once, as a power failure does. Slurm is not told."""
        for pid in self.processes_of(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with; nothing if it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)


def _parent_of(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0


def _name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _first_job() -> int:
    """A number from which some jobs have free ports by the rule of ``JOB_PORTS``."""
    while True:
        first = random.SystemRandom().randrange(1, len(JOB_PORTS) - 8)
        if not any(is_taken(JOB_PORTS[first + more]) for more in range(8)):
            return first
