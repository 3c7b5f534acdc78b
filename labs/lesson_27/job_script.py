"""A job script of Slurm, run by bash where there is no Slurm. For the exercise of lesson 27.

What a script does is seen by running it: its lines #SBATCH are read as sbatch reads them, and on the PATH of
its commands stand-ins come first. ``srun`` starts its command for each task, on nodes that are only names.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared.runtime.errors import CourseError

JOB = "1234"
# Options of srun whose value may be the next word.
WITH_VALUE = {
    "-N",
    "-n",
    "-c",
    "-J",
    "-o",
    "-e",
    "-t",
    "-p",
    "-w",
    "-G",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--cpus-per-task",
    "--gpus-per-task",
    "--gpus-per-node",
    "--output",
    "--error",
    "--cpu-bind",
    "--gpu-bind",
    "--export",
    "--chdir",
    "--nodelist",
}
PROGRAMS = {
    "scontrol": """#!/bin/bash
if [ "$1" = "show" ]; then printf '%s\\n' $NAMES_OF_NODES; fi
""",
    "srun": """#!/bin/bash
exec @python@ @srun@ "$@"
""",
}


def options_of(script: str) -> argparse.Namespace:
    """What the lines #SBATCH ask for. Slurm reads them up to the first command."""
    words = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.startswith("#"):
            break
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("-N", "--nodes", type=int, default=1)
    parser.add_argument("-n", "--ntasks", type=int)
    parser.add_argument("--ntasks-per-node", type=int)
    parser.add_argument("--gpus-per-node", default="")
    parser.add_argument("--requeue", action="store_true")
    parser.add_argument("--no-requeue", action="store_false", dest="requeue")
    parser.add_argument("--open-mode", default="truncate")
    try:
        return parser.parse_known_args(words)[0]
    except argparse.ArgumentError as error:
        raise CourseError(f"sbatch does not understand the script: {error}") from None


def tasks_per_node(options: argparse.Namespace) -> int:
    if options.ntasks_per_node:
        return options.ntasks_per_node
    if options.ntasks:
        return -(-options.ntasks // options.nodes)
    return 1


def srun(*words: str) -> int:
    """Stands in for srun: start the command so often on each node; the highest exit code is its own."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("-N", "--nodes", type=int, default=int(os.environ["SLURM_NNODES"]))
    parser.add_argument("-n", "--ntasks", type=int)
    parser.add_argument("--ntasks-per-node", type=int)
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUE else 1
    own, _ = parser.parse_known_args(words[:at])
    if own.ntasks is None and own.ntasks_per_node is None:
        own.ntasks_per_node = int(os.environ["TASKS_PER_NODE"])
    tasks: list[subprocess.Popen] = []
    for node_id, node in enumerate(os.environ["NAMES_OF_NODES"].split()[: own.nodes]):
        for local_id in range(tasks_per_node(own)):
            told = {"SLURMD_NODENAME": node, "SLURM_NODEID": node_id, "SLURM_LOCALID": local_id}
            told |= {"SLURM_PROCID": len(tasks), "SLURM_NTASKS": own.nodes * tasks_per_node(own)}
            environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
            tasks.append(subprocess.Popen(words[at:], env=environment))
    return max(task.wait() for task in tasks)


def run_by_bash(
    script: Path,
    options: argparse.Namespace,
    nodes: Sequence[str],
    gpus: int,
    environment: dict[str, str],
    limit_s: float,
    restarts: int = 0,
) -> int:
    """Run a job script as on the first node of a job; return its exit code. Its folder is the job's.

    ``restarts`` is how often the job has been queued again.
    """
    told = {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOBID": JOB,
        "SLURM_RESTART_COUNT": str(restarts),
        "SLURM_NNODES": str(options.nodes),
        "SLURM_JOB_NUM_NODES": str(options.nodes),
        "SLURM_JOB_NODELIST": ",".join(nodes),
        "SLURM_NODELIST": ",".join(nodes),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURMD_NODENAME": nodes[0],
        "HOSTNAME": nodes[0],  # Slurm sets it for the job script, and srun hands it on
        "SLURM_GPUS_ON_NODE": str(gpus),
        "NAMES_OF_NODES": " ".join(nodes),
        "TASKS_PER_NODE": str(tasks_per_node(options)),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    with tempfile.TemporaryDirectory() as name:
        for program, text in PROGRAMS.items():
            path = Path(name) / program
            text = text.replace("@python@", shlex.quote(sys.executable)).replace(
                "@srun@", shlex.quote(__file__)
            )
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)
        told["PATH"] = os.pathsep.join([name, environment["PATH"]])
        done = subprocess.run(
            ["bash", str(script)],
            env={**os.environ, **environment, **told},
            cwd=script.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(srun(*sys.argv[1:]))
