"""A lab whose last rank fails, while the others wait for it.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_00_fails.py
Written by:  notebooks/00_start_here.ipynb
"""

import torch.distributed as dist

from shared.runtime.group import process_group
from shared.runtime.run import run


def main() -> None:
    with process_group(timeout_s=20) as group:
        if group.rank == group.world_size - 1:
            raise RuntimeError("this rank was told to fail")
        dist.barrier()  # the others wait here until torchrun ends them


if __name__ == "__main__":
    run(main)
