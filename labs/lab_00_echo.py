"""One rank fails, and the others wait for it: a plain script, to show everything that is printed.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_00_echo.py
Ends with:   exit code 1
Written by:  notebooks/00_start_here.ipynb (edit it there)
"""

import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()  # all ranks are there
    if dist.get_rank() == 1:
        raise RuntimeError("this rank was told to fail")
    dist.barrier()  # the others wait here for the rank that fails
    raise AssertionError("a rank came through the barrier, so no rank failed before it")


if __name__ == "__main__":
    main()
