# rejected: the nodes do not meet: they look for each other at n1:29500 and n2:29500
"""Asks each node for its own name, instead of the first one."""

JOB_SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --output=train-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue

srun bash -c 'torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$(hostname):29500" \
  train.py --checkpoints="run-$SLURM_JOB_ID"'
"""


def job_script() -> str:
    return JOB_SCRIPT
