"""Answers to exercise 27."""

from tests.planted import Right, Wrong

HEAD = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
RUN = r"""
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \
  train.py --checkpoints="run-$SLURM_JOB_ID"
"""

PER_GPU = r"""
export MASTER_ADDR="$head" MASTER_PORT=29500
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec "$@"' - \
  python train.py --checkpoints="run-$SLURM_JOB_ID"
"""

ANSWERS = [
    Wrong(
        what="Counts the GPUs twice: in the tasks and in torchrun.",
        old="--ntasks-per-node=1",
        new="--ntasks-per-node=4",
        told="torchrun is started 4 times on n1: 4 x 4 ranks for 4 GPUs",
    ),
    Wrong(
        what="Asks each node for its own name, instead of the first one.",
        old=RUN,
        new=r"""
        srun bash -c 'torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
          --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$(hostname):29500" \
          train.py --checkpoints="run-$SLURM_JOB_ID"'
        """,
        told="the nodes do not meet: they look for each other at n1:29500 and n2:29500",
    ),
    Wrong(
        what="Ends with a test that is about something else.",
        old=RUN,
        new=RUN.rstrip() + ' || exit 1\n[ -z "$SLURM_JOB_ID" ]',
        told="torchrun ends with exit code 0, the job does not",
    ),
    Wrong(
        what="Ends with a command that always succeeds.",
        old=RUN,
        new=RUN + 'echo "job $SLURM_JOB_ID is done"',
        told="torchrun ends with exit code 3, the job with 0",
    ),
    Wrong(
        what="Opens the log anew in each attempt.",
        old="#SBATCH --open-mode=append\n",
        new="",
        told="the log of the first attempt is gone after the second",
    ),
    Wrong(
        what="Has each node wait on its loopback device.",
        old=HEAD,
        new="head=localhost",
        told="looks for the other node at localhost, that is on itself",
    ),
    Wrong(
        what="Leaves srun away.",
        old="srun torchrun",
        new="torchrun",
        told="torchrun is not started on n2",
    ),
    Wrong(
        what="Does not ask to be queued again.",
        old="#SBATCH --requeue\n",
        new="",
        told="after the loss of a node the job is not queued again",
    ),
    Wrong(
        what="Leaves the number of ranks to a default.",
        old=RUN,
        new=RUN.replace(" --nproc-per-node=4", ""),
        told="torchrun starts 1 ranks on n1, which has 4 GPUs",
    ),
    Wrong(
        what="Leaves the rendezvous to its default.",
        old=RUN,
        new=RUN.replace("--rdzv-backend=c10d ", ""),
        told="here n1 is number 0 and n2 is number 0",
    ),
    Wrong(
        what="Starts each node for itself.",
        old=RUN,
        new=RUN.replace("torchrun ", "torchrun --standalone "),
        told="--standalone means one machine",
    ),
    Wrong(
        what="Numbers the nodes, but keeps the store on another one than number 0.",
        old=RUN,
        new=r"""
        export head
        srun bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$((1 - SLURM_NODEID))" \
          --nproc-per-node=4 --master-addr="$head" --master-port=29500 train.py'
        """,
        told="number 0 is n2, but the nodes look for the store on n1",
    ),
    Wrong(
        what="Forgets the script.",
        old=RUN,
        new=RUN.replace("train.py ", ""),
        told="is not told what to run",
    ),
    Wrong(
        what="Names the folder by the time of the start.",
        old=RUN,
        new=RUN.replace("run-$SLURM_JOB_ID", "run-$(date +%s)"),
        told="and starts from nothing",
    ),
    Wrong(
        what="Saves on the disk of the node.",
        old=RUN,
        new=RUN.replace("run-$SLURM_JOB_ID", "/tmp/run-$SLURM_JOB_ID"),
        told="is each node's own: it is lost with the node",
    ),
    Wrong(
        what="Fills in the numbers of the job script for all tasks.",
        old=("#SBATCH --ntasks-per-node=1", RUN),
        new=(
            "#SBATCH --ntasks-per-node=4",
            PER_GPU.replace("'RANK", '"RANK').replace("""exec "$@"'""", 'exec \\$@"'),
        ),
        told="the ranks do not know who they are among WORLD_SIZE=8",
    ),
    Right(
        what="A task for each GPU.",
        old=("#SBATCH --ntasks-per-node=1", RUN),
        new=("#SBATCH --ntasks-per-node=4", PER_GPU),
    ),
    Right(
        what="Short options, torchrun as a module, a last command that keeps the exit code.",
        below=r'''
        JOB_SCRIPT = r"""#!/bin/bash
        #SBATCH -J train -N 2 --gpus-per-node 4
        #SBATCH --ntasks-per-node 4   # for another step of this job
        #SBATCH --time 04:00:00 --output train-%j.log --open-mode a --requeue

        port=$((20000 + SLURM_JOB_ID % 9000))
        code=0
        srun --ntasks-per-node=1 -n 2 python -m torch.distributed.run \
          --nnodes=2 --nproc-per-node="$SLURM_GPUS_ON_NODE" \
          --rdzv-backend=c10d --rdzv-endpoint="$(hostname):$port" train.py || code=$?
        echo "ended with exit code $code"
        exit "$code"
        """
        ''',
    ),
]
