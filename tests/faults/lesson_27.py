"""Planted faults of lesson 27; the form is described in ``tests/faults/__init__.py``."""

from shared.lesson_27 import needs
from tests.faults import Fault

# Machines, wires, launches.
HOSTS: list[Fault] = [
    Fault(
        "27_broken",
        'f"127.0.1.1 {host.name}"',
        'f"{host.address} {host.name}"',
        "all ranks were to fail, but they say",
        launch="python",
        ranks=0,
        missing=needs.cables,
    ),
    Fault(
        "27_hosts",
        "HEADERS = 14 + 20 + 32",
        "HEADERS = 14 + 20 + 20",
        "bytes were sent, the network card has counted",
        launch="python",
        ranks=0,
        missing=needs.hosts,
    ),
    Fault(
        "27_launch",
        '"GLOO_SOCKET_IFNAME": "eth0"',
        '"GLOO_SOCKET_IFNAME": "eth1"',
        "Unable to find address for: eth1",
        launch="python",
        ranks=0,
        missing=needs.hosts,
    ),
    Fault(
        "27_who",
        'mine["name"] = socket.gethostname()',
        'mine["name"] = socket.gethostname() + str(mine["RANK"])',
        "machine 0 has several names",
    ),
    Fault(
        "27_wire",
        "return 2 * (n - 1) / n * size",
        "return (n - 1) / n * size",
        "bytes went out, the formula says",
        launch="python",
        ranks=0,
        missing=needs.cables,
    ),
]
SCHEDULERS: list[Fault] = [  # Slurm, Kubernetes
    Fault(
        "27_train.sbatch",
        'scancel --signal=TERM "$SLURM_JOB_ID.0"',
        'scontrol requeue "$SLURM_JOB_ID"',
        "of 2 ranks have saved, then all were killed",  # none or one, by chance
        run="27_notice",
        ranks=0,
        launch="python",
        missing=needs.slurm,
    ),
    Fault(
        "27_train.sbatch",
        "srun --kill-on-bad-exit=1 torchrun",
        "srun torchrun",
        "failure: waited for the end of a job of which a rank has failed",
        run="27_notice",
        arguments=("failure",),
        ranks=0,
        launch="python",
        missing=needs.slurm,
    ),
    Fault(
        "27_notice",
        "longest_save_s: int = 12",
        "longest_save_s: int = 2",
        "of 2 ranks have saved, then all were killed",  # none or one, by chance
        ranks=0,
        launch="python",
        missing=needs.slurm,
    ),
    Fault(
        "27_requeue",
        '"--signal=USR1", "--batch"',
        '"--signal=USR1"',
        "a rank has ended before anybody sent it SIGTERM",
        ranks=0,
        launch="python",
        missing=needs.slurm,
    ),
]

FAULTS: list[Fault] = [*HOSTS, *SCHEDULERS]
