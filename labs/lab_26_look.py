"""A script that hangs, and a thread in each rank that says where the rank is: torch and Python, nothing else.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_26_look.py
Ends with:   exit code 1
Written by:  notebooks/26_when_it_hangs.ipynb

It would hang for half an hour. We set the time-out to 12 s, and look after 5 s.
"""

import pickle
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace


def look_after(seconds: float) -> None:
    """Wait, then print where the main thread is, and this rank's last call as the flight recorder has it."""
    time.sleep(seconds)
    stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
    here = [place for place in stack if Path(place.filename).name == Path(__file__).name][-1]
    last = pickle.loads(_dump_fr_trace(includeStackTraces=False))["entries"][-1]
    rank = f"rank {dist.get_rank()}"
    call = f"call {last['collective_seq_id']}: {last['profiling_name']} of {last['input_sizes']}"
    # In one write, so that the lines of two ranks do not mix.
    print(f"{rank} is in line {here.lineno}, in {here.name}: {here.line}\n{rank} made {call}\n", end="")


def evaluate() -> None:
    hits = torch.ones(1)
    dist.all_reduce(hits)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    gradient = torch.ones(10)
    dist.all_reduce(gradient)
    threading.Thread(target=look_after, args=(5,), daemon=True).start()
    dist.all_reduce(gradient)
    if dist.get_rank() == 0:
        evaluate()
    dist.barrier()


if __name__ == "__main__":
    main()
