# rejected: looks for the other node at localhost, that is on itself
"""Has each node wait on its loopback device."""

JOB_SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --output=train-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue

head=localhost
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \
  train.py --checkpoints="run-$SLURM_JOB_ID"
"""


def job_script() -> str:
    return JOB_SCRIPT
