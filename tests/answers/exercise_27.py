"""Answers to exercise 27; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

HEAD = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
RUN = r"""
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \
  train.py --checkpoints="run-$SLURM_JOB_ID"
"""

ANSWERS = [
    wrong(
        "Counts the GPUs twice: in the tasks and in torchrun.",
        "torchrun is started 4 times on n1: 4 x 4 ranks for 4 GPUs",
        ("--ntasks-per-node=1", "--ntasks-per-node=4"),
    ),
    wrong(
        "Asks each node for its own name, instead of the first one.",
        "the nodes do not meet: they look for each other at n1:29500 and n2:29500",
        (
            RUN,
            r"""
            srun bash -c 'torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
              --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$(hostname):29500" \
              train.py --checkpoints="run-$SLURM_JOB_ID"'
            """,
        ),
    ),
    wrong(
        "Ends with a test that is about something else.",
        "torchrun ends with exit code 0, the job does not",
        (RUN, RUN.rstrip() + ' || exit 1\n[ -z "$SLURM_JOB_ID" ]'),
    ),
    wrong(
        "Ends with a command that always succeeds.",
        "torchrun ends with exit code 3, the job with 0",
        (RUN, RUN + 'echo "job $SLURM_JOB_ID is done"'),
    ),
    wrong(
        "Opens the log anew in each attempt.",
        "the log of the first attempt is gone after the second",
        ("#SBATCH --open-mode=append\n", ""),
    ),
    wrong(
        "Has each node wait on its loopback device.",
        "looks for the other node at localhost, that is on itself",
        (HEAD, "head=localhost"),
    ),
    wrong(
        "Leaves srun away.",
        "torchrun is not started on n2",
        ("srun torchrun", "torchrun"),
    ),
    wrong(
        "Does not ask to be queued again.",
        "after the loss of a node the job is not queued again",
        ("#SBATCH --requeue\n", ""),
    ),
    wrong(
        "Leaves the number of ranks to a default.",
        "torchrun starts 1 ranks on n1, which has 4 GPUs",
        (RUN, RUN.replace(" --nproc-per-node=4", "")),
    ),
    wrong(
        "Leaves the rendezvous to its default.",
        "here n1 is number 0 and n2 is number 0",
        (RUN, RUN.replace("--rdzv-backend=c10d ", "")),
    ),
    wrong(
        "Starts each node for itself.",
        "--standalone means one machine",
        (RUN, RUN.replace("torchrun ", "torchrun --standalone ")),
    ),
    wrong(
        "Numbers the nodes, but keeps the store on another one than number 0.",
        "number 0 is n2, but the nodes look for the store on n1",
        (
            RUN,
            r"""
            export head
            srun bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$((1 - SLURM_NODEID))" \
              --nproc-per-node=4 --master-addr="$head" --master-port=29500 train.py'
            """,
        ),
    ),
    wrong(
        "Forgets the script.",
        "is not told what to run",
        (RUN, RUN.replace("train.py ", "")),
    ),
    wrong(
        "Names the folder by the time of the start.",
        "and starts from nothing",
        (RUN, RUN.replace("run-$SLURM_JOB_ID", "run-$(date +%s)")),
    ),
    right(
        "Slurm's own name for the node on which the job script runs.",
        (HEAD, "head=$HOSTNAME"),
    ),
    right(
        "srun in the background, so that a trap can act while it runs.",
        (
            RUN,
            r"""
            trap 'notice=yes; scancel --signal=TERM "$SLURM_JOB_ID.0"' USR1
            srun --kill-on-bad-exit=1 torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
              --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \
              train.py --checkpoints="run-$SLURM_JOB_ID" &
            wait "$!" && exit
            code=$?
            [ -z "$notice" ] || wait "$!" || scontrol requeue "$SLURM_JOB_ID"
            exit "$code"
            """,
        ),
    ),
    right(
        "The other node is late, and the first failure ends all.",
        (
            "srun torchrun ",
            "srun --kill-on-bad-exit=1 bash -c '[ $SLURM_NODEID = 0 ] || sleep 2; exec torchrun \"$@\"' _ ",
        ),
    ),
    right(
        "Short options, torchrun as a module, the head by its name, a last command that keeps the exit code.",
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
    right(
        "The nodes are numbered by Slurm, and no rendezvous is held.",
        (
            RUN,
            r"""
            export head
            srun bash -c 'torchrun --nnodes="$SLURM_NNODES" --node_rank="$SLURM_NODEID" --nproc_per_node=gpu \
              --master_addr="$head" --master_port=29500 train.py --checkpoints="run-$SLURM_JOB_ID"'
            """,
        ),
    ),
]
