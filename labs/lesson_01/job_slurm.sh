#!/bin/bash
# Two nodes of 4 GPUs, one rank for each GPU. Submit it: sbatch job_slurm.sh
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4    # a task is a process that srun starts: one for each GPU
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8      # cores of a rank and of what loads its data

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 9000))
srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" bash -c \
  'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec python train.py'
