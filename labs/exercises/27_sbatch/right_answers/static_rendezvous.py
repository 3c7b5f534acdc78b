# accepted: the nodes are numbered by Slurm, and no rendezvous is held
"""Ranks in the order of the nodes: --node-rank, which is known on the node only."""

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
export head
srun bash -c 'torchrun --nnodes="$SLURM_NNODES" --node_rank="$SLURM_NODEID" --nproc_per_node=gpu \
  --master_addr="$head" --master_port=29500 train.py --checkpoints="run-$SLURM_JOB_ID"'
"""


def job_script() -> str:
    return JOB_SCRIPT
