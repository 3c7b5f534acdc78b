"""Exercise 27: a job script for two nodes with 4 GPUs each, which has five faults."""

JOB_SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
# solution: begin
#SBATCH --ntasks-per-node=1
# solution: found
# #SBATCH --ntasks-per-node=4
# solution: end
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --output=train-%j.log
#SBATCH --open-mode=append
# solution: begin
#SBATCH --requeue
# solution: found
# solution: end

# solution: begin
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \
  train.py --checkpoints="run-$SLURM_JOB_ID"
# solution: found
# head=localhost
# torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
#   --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" \
#   train.py --checkpoints="run-$SLURM_JOB_ID"
# echo "job $SLURM_JOB_ID is done"
# solution: end
"""


def job_script() -> str:
    """The script, mended: it is to start 4 ranks on each node, which find each other, in one of two ways.

    The cluster queues a job again, after a preemption or the loss of a node, only if its script asks for it.
    When training fails, Slurm is to call the job failed. The folder that the job starts in is on a drive that
    all nodes share; ``/tmp`` and the like are each node's own.
    """
    # solution: begin
    # solution: found
    # raise NotImplementedError  # your turn: remove this line, and mend JOB_SCRIPT
    # solution: end
    return JOB_SCRIPT


if __name__ == "__main__":
    print(job_script())
