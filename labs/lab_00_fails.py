"""The script with the failing rank again, now entered through ``run``, as most labs of this course are.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_00_fails.py
Written by:  notebooks/00_start_here.ipynb
"""

from lab_00_echo import main

from shared.runtime.run import run

if __name__ == "__main__":
    run(main)
