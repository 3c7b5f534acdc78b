"""Planted faults of lesson 27."""

from tests.planted import Fault, group_of

from lesson_27 import needs

# Machines, wires, launches.
HOSTS: list[Fault] = [
    *group_of(
        Fault(
            lab="27_broken",
            old='f"127.0.1.1 {host.name}"',
            new='f"{host.address} {host.name}"',
            told="all ranks were to fail, but they say",
            missing=needs.cables,
        ),
        Fault(
            lab="27_hosts",
            old="HEADERS = 14 + 20 + 32",
            new="HEADERS = 14 + 20 + 20",
            told="bytes were sent, the network card has counted",
            missing=needs.hosts,
        ),
        Fault(
            lab="27_launch",
            old='"GLOO_SOCKET_IFNAME": "eth0"',
            new='"GLOO_SOCKET_IFNAME": "eth1"',
            told="Unable to find address for: eth1",
            missing=needs.hosts,
        ),
        launch="python",
        ranks=0,
    ),
    Fault(
        lab="27_who",
        old='mine["name"] = socket.gethostname()',
        new='mine["name"] = socket.gethostname() + str(mine["RANK"])',
        told="machine 0 has several names",
    ),
    Fault(
        lab="27_wire",
        old="return 2 * (n - 1) / n * size",
        new="return (n - 1) / n * size",
        told="bytes went out, the formula says",
        launch="python",
        ranks=0,
        missing=needs.hosts,
    ),
]
SCHEDULERS: list[Fault] = [  # Slurm, Kubernetes
    *group_of(
        Fault(
            lab="27_train.sbatch",
            old='scancel --signal=TERM "$SLURM_JOB_ID.0"',
            new='scontrol requeue "$SLURM_JOB_ID"',
            told="of 2 ranks have saved, then all were killed",  # none or one, by chance
            run="27_notice",
        ),
        Fault(
            lab="27_train.sbatch",
            old="srun --kill-on-bad-exit=1 ",
            new="srun ",
            told="failure: waited for the end of a job of which a rank has failed",
            run="27_notice",
            arguments=("failure",),
        ),
        Fault(
            lab="27_per_gpu.sbatch",
            old="LOCAL_RANK=$SLURM_LOCALID",
            new="LOCAL_RANK=$SLURM_PROCID",
            told="node, rank, local rank and world size of the ranks: expected",
            run="27_per_gpu",
        ),
        Fault(
            lab="27_requeue",
            old='"--signal=USR1", "--batch"',
            new='"--signal=USR1"',
            told="a rank has ended before anybody sent it SIGTERM",
        ),
        ranks=0,
        launch="python",
        missing=needs.slurm,
    ),
]

FAULTS: list[Fault] = [*HOSTS, *SCHEDULERS]
