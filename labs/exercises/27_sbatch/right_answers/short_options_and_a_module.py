# accepted: other spellings, a last command that keeps the exit code
"""Short options, torchrun as a module, the head by its name, and a line at the end."""

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


def job_script() -> str:
    return JOB_SCRIPT
