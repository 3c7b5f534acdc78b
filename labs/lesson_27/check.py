"""Check of exercise 27. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py

The script is run by bash, with stand-ins for srun, scontrol, torchrun and the training, which note what they
are asked for. Where Slurm is installed, rank 0 submits it to one, too; there, only torchrun and the training
are stand-ins.
"""

import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from shared.runtime.errors import CourseError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

from lesson_27 import needs
from lesson_27.job_script import options_of, run_by_bash
from lesson_27.slurm import ENDED, Slurm

NODES = ("n1", "n2")
GPUS = 4  # of a node
FAILS = 3  # exit code of torchrun in the first attempt
LIMIT_S = 60.0
OWN_DISK = ("/tmp", "/var/tmp", "/dev/shm")  # of each node
STAND_INS = {
    # It waits for the other tasks: if it failed before, srun would end theirs unnoted.
    "torchrun": """#!/bin/bash
echo "attempt ${SLURM_RESTART_COUNT:-0}"
note=$(mktemp "$NOTES/../XXXXXXXX")
printf '%s\\0' "$SLURMD_NODENAME" "$@" > "$note"
mv "$note" "$NOTES"
for _ in {1..300}; do
  [ -n "$SLURM_STEP_ID" ] && [ "$(ls "$NOTES" | wc -l)" -lt "$SLURM_NTASKS" ] || break
  sleep 0.1
done
exit "$(cat "$NOTES/../code")"
""",
    "python": """#!/bin/bash
if [ "$1 $2" = "-m torch.distributed.run" ]; then shift 2; exec torchrun "$@"; fi
for word in "$@"; do
  me="rank $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"
  [[ "$word" != *train.py ]] || exec torchrun "$me" "$@"
done
exec @python@ "$@"
""",
    "hostname": """#!/bin/bash
echo "$SLURMD_NODENAME"
""",
    "date": """#!/bin/bash
echo "$RANDOM$RANDOM"
""",
}


@dataclass(frozen=True)
class Start:
    """One call of torchrun: on which node, with which options, and what it starts."""

    node: str
    nnodes: str
    ranks: str
    backend: str  # of the rendezvous
    node_rank: str  # counts for "static" only
    alone: bool
    meet: str  # where the nodes look for each other
    name: str
    script: str
    checkpoints: str

    @property
    def host(self) -> str:
        return self.meet.rpartition(":")[0] or self.meet


@dataclass(frozen=True)
class Rank:
    """A training that srun has started without torchrun, and what its environment tells it."""

    node: str
    rank: str
    local_rank: str
    ranks: str
    meet: str
    checkpoints: str


def with_dashes(word: str) -> str:
    """An option with dashes in its name: torchrun takes ``--node_rank``, too."""
    name, sign, value = word.partition("=")
    return f"{name.replace('_', '-')}{sign}{value}" if word.startswith("--") else word


def start_of(note: bytes) -> Start | Rank:
    node, *words = note.decode().split("\0")[:-1]
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--nnodes", default="1")
    parser.add_argument("--nproc-per-node", default="1")
    parser.add_argument("--rdzv-backend", default="static")
    parser.add_argument("--rdzv-endpoint", default="")
    parser.add_argument("--rdzv-id", default="none")
    parser.add_argument("--node-rank", default="0")
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--checkpoints", default="")  # of the script
    known, others = parser.parse_known_args([with_dashes(word) for word in words])
    if words and words[0].startswith("rank "):
        rank, local_rank, ranks, meet = words[0].removeprefix("rank ").split(" ")
        return Rank(node, rank, local_rank, ranks, meet, known.checkpoints)
    scripts = [word for word in others if word.endswith(".py") or known.module]
    return Start(
        node=node,
        nnodes=known.nnodes,
        ranks=known.nproc_per_node,
        backend=known.rdzv_backend,
        node_rank=known.node_rank,
        alone=known.standalone,
        meet=known.rdzv_endpoint or known.master_addr,
        name=known.rdzv_id,
        script=scripts[0] if scripts else "",
        checkpoints=known.checkpoints,
    )


class Trial:
    """A folder with the script, the stand-ins and what they note."""

    def __init__(self, script: str, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.script = folder / "job.sh"
        self.script.write_text(script, encoding="utf-8")
        programs = folder / "programs"
        programs.mkdir()
        for name, text in STAND_INS.items():
            text = text.replace("@python@", shlex.quote(sys.executable))
            (programs / name).write_text(text, encoding="utf-8")
            (programs / name).chmod(0o755)
        shutil.copy(programs / "python", programs / "python3")
        path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
        self.environment = {"PATH": path, "NOTES": str(self.notes)}

    def torchrun_ends_with(self, code: int) -> None:
        (self.folder / "code").write_text(str(code), encoding="utf-8")
        for note in self.notes.iterdir():
            note.unlink()

    def attempt_without_slurm(self, options: argparse.Namespace, code: int, restarts: int = 0) -> int:
        """Run the script by bash; return its exit code."""
        self.torchrun_ends_with(code)
        return run_by_bash(self.script, options, NODES, GPUS, self.environment, LIMIT_S, restarts)

    def starts(self) -> list[Start | Rank]:
        starts = [start_of(note.read_bytes()) for note in self.notes.iterdir()]
        return sorted(starts, key=lambda start: start.node)


# --- What is to be seen ---


def check_found(found: list[Start | Rank]) -> None:
    """Raise Wrong unless torchrun was started once on each node, or each rank once, and all can meet."""
    if not found:
        raise Wrong("no training is ever started")
    ranks = [one for one in found if isinstance(one, Rank)]
    if ranks:
        check_ranks(ranks)
    else:
        check_starts([one for one in found if isinstance(one, Start)])


def check_ranks(ranks: list[Rank]) -> None:
    """Without torchrun the job script tells each rank who it is and where to meet."""
    found = sorted((one.node, one.local_rank, one.rank, one.ranks) for one in ranks)
    size = GPUS * len(NODES)
    expected = [(NODES[rank // GPUS], str(rank % GPUS), str(rank), str(size)) for rank in range(size)]
    if found != expected:
        told = ", ".join(f"{node}: LOCAL_RANK={local!r} RANK={rank!r}" for node, local, rank, _ in found)
        raise Wrong(f"the ranks do not know who they are among WORLD_SIZE={size}: {told}")
    places = {one.meet for one in ranks}
    (first,) = [one.node for one in ranks if one.rank == "0"]
    if len(places) > 1 or not re.fullmatch(rf"{first}:[0-9]+", min(places)):
        raise Wrong(f"the ranks look for rank 0, which is on {first}, at {' and '.join(sorted(places))}")


def check_starts(starts: list[Start]) -> None:
    """Raise Wrong unless torchrun was started once on each node, and the ranks can meet."""
    counts = Counter(start.node for start in starts)
    for node in NODES:
        if counts[node] == 0:
            raise Wrong(f"torchrun is not started on {node}: a job script runs on the first node only")
    for node in NODES:
        if counts[node] > 1:
            ranks = f"{counts[node]} x {starts[0].ranks} ranks for {GPUS} GPUs"
            raise Wrong(f"torchrun is started {counts[node]} times on {node}: {ranks}")
    for start in starts:
        check_options(start)
    check_meeting(starts)


def check_meeting(starts: list[Start]) -> None:
    """Raise Wrong unless the torchruns of all nodes find each other and agree on who is first."""
    if len({start.meet for start in starts}) > 1:
        places = " and ".join(sorted(start.meet for start in starts))
        raise Wrong(f"the nodes do not meet: they look for each other at {places}")
    if starts[0].host not in NODES:
        raise Wrong(f"the nodes look for each other at {starts[0].host!r}, which is none of them")
    if len({start.name for start in starts}) > 1:
        raise Wrong("the nodes do not meet: their --rdzv-id differ")
    if len({start.backend for start in starts}) > 1 or starts[0].backend not in ("static", "c10d"):
        raise Wrong(f"the nodes do not meet: --rdzv-backend is {starts[0].backend!r}, take c10d")
    if starts[0].backend == "static":
        check_numbers(starts)


def check_numbers(starts: list[Start]) -> None:
    """Without a rendezvous nobody numbers the nodes: each needs its own, and 0 is where the store is."""
    numbers = [start.node_rank for start in starts]
    if sorted(numbers) != [str(number) for number in range(len(NODES))]:
        told = " and ".join(f"{start.node} is number {start.node_rank}" for start in starts)
        raise Wrong(f"without --rdzv-backend=c10d each node needs a --node-rank of its own; here {told}")
    (first,) = [start.node for start in starts if start.node_rank == "0"]
    if starts[0].host != first:
        raise Wrong(f"number 0 is {first}, but the nodes look for the store on {starts[0].host}")


def check_options(start: Start) -> None:
    if start.alone:
        raise Wrong(f"--standalone means one machine: on {start.node} torchrun does not look for the other")
    if not start.script:
        raise Wrong(f"torchrun on {start.node} is not told what to run: there is no train.py")
    if start.nnodes not in (str(len(NODES)), f"{len(NODES)}:{len(NODES)}"):
        raise Wrong(f"torchrun waits for {start.nnodes} nodes, the job has {len(NODES)}")
    if start.ranks not in (str(GPUS), "gpu", "auto"):
        raise Wrong(f"torchrun starts {start.ranks} ranks on {start.node}, which has {GPUS} GPUs")
    if start.host == "localhost" or start.host.startswith("127."):
        raise Wrong(f"{start.node} looks for the other node at {start.host}, that is on itself")


def check_with_stand_ins(script: str, folder: Path) -> None:
    try:
        options = options_of(script)
    except CourseError as error:
        raise Wrong(str(error)) from None
    if options.nodes != len(NODES) or options.gpus_per_node.rpartition(":")[2] != str(GPUS):
        raise Wrong(f"the job is to have {len(NODES)} nodes with {GPUS} GPUs each")
    trial = Trial(script, folder)
    code = trial.attempt_without_slurm(options, FAILS)
    check_found(trial.starts())
    if code == 0:
        raise Wrong(f"torchrun ends with exit code {FAILS}, the job with 0: for Slurm it has succeeded")
    before = trial.starts()[0].checkpoints
    if before.startswith(OWN_DISK) and not Path(before).is_relative_to(folder):
        raise Wrong(f"the job saves in {before}, which is each node's own: it is lost with the node")
    if trial.attempt_without_slurm(options, 0, restarts=1) != 0:
        raise Wrong("torchrun ends with exit code 0, the job does not: for Slurm it has failed")
    after = trial.starts()[0].checkpoints
    if before != after:
        raise Wrong(f"the job saves in {before}; queued again it looks in {after}, and starts from nothing")
    if not options.requeue:
        raise Wrong("after the loss of a node the job is not queued again: the script does not ask for it")
    if options.open_mode not in ("append", "a"):
        raise Wrong("the log of the first attempt is gone after the second: it is not opened to append")


def check_with_slurm(script: str, folder: Path) -> None:
    """Two attempts of one job on a real Slurm: the first fails, is requeued, and the second succeeds."""
    trial = Trial(script, folder)
    with Slurm(NODES, gpus=GPUS, **trial.environment) as slurm:
        trial.torchrun_ends_with(FAILS)
        number = slurm.submit(str(trial.script), folder=folder)
        slurm.until(lambda: slurm.state(number) in ENDED, "the end of the first attempt")
        started = trial.starts()
        check_found(started)
        if slurm.state(number) != "FAILED":
            raise Wrong(
                f"torchrun ends with exit code {FAILS}, and Slurm calls the job {slurm.state(number)}"
            )
        trial.torchrun_ends_with(0)
        slurm.call("scontrol", "requeue", number)
        slurm.start_now(number)
        slurm.until(lambda: slurm.state(number) in ENDED, "the end of the second attempt")
        if slurm.state(number) != "COMPLETED":
            raise Wrong(f"torchrun ends with exit code 0, and Slurm calls the job {slurm.state(number)}")
        log = Path(slurm.job(number)["StdOut"]).read_text(encoding="utf-8")
        if log.count("attempt 0") != len(started) or log.count("attempt 1") != len(started):
            raise Wrong("the log does not hold what both attempts have printed")


def verify(answer: ModuleType, group: Group) -> str:
    script = answer.job_script()
    with tempfile.TemporaryDirectory() as name:
        check_with_stand_ins(script, Path(name))
    reason = needs.slurm()
    if reason is None and group.rank == 0:
        with tempfile.TemporaryDirectory() as name:
            check_with_slurm(script, Path(name))
    where = "not run by Slurm: none is here" if reason else "run by Slurm, too"
    return f"{len(NODES)} nodes, {len(NODES) * GPUS} ranks, five faults mended; {where}. Well done."


if __name__ == "__main__":
    check_exercise("27_sbatch", verify, ranks=2, timeout_s=LIMIT_S)
