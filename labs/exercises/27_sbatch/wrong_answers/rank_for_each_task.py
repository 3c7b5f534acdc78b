# rejected: torchrun starts 1 ranks on n1, which has 4 GPUs
"""Leaves the number of ranks to a default."""

JOB_SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --output=train-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes="$SLURM_NNODES" \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \
  train.py --checkpoints="run-$SLURM_JOB_ID"
"""


def job_script() -> str:
    return JOB_SCRIPT
