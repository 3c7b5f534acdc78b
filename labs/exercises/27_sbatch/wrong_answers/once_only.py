# rejected: after the loss of a node the job is not queued again
"""Does not ask to be queued again."""

JOB_SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --output=train-%j.log
#SBATCH --open-mode=append

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \
  train.py --checkpoints="run-$SLURM_JOB_ID"
"""


def job_script() -> str:
    return JOB_SCRIPT
