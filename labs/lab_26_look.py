"""A job that hangs, and what torch's worker servers say about each rank: torch and Python, nothing else.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_26_look.py
Ends with:   exit code 1
Written by:  notebooks/26_when_it_hangs.ipynb (edit it there)

gloo gives up after ``--timeout`` seconds. Rank 0 looks after 5 s, which must be before the time-out.
"""

import argparse
import io
import json
import os
import re
import socket
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.control_plane import worker_main

FRAME = re.compile(r'File ".*?([^/"]+)", line (\d+) in (\w+)')
CALL = "call {collective_seq_id}: {profiling_name} of {input_sizes}, retired: {retired}"


def address(rank: int) -> str:
    return f"{tempfile.gettempdir()}/rank_{rank}_{os.environ['MASTER_PORT']}.sock"


def ask(rank: int, handler: str) -> str:
    """What a rank's worker server answers, by HTTP over its Unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address(rank))
        connection.sendall(f"POST /handler/{handler} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    return answer.decode().partition("\r\n\r\n")[2]


def look_after(seconds: float) -> None:
    """Wait, then print the stack of each rank's main thread and its newest call of the default group."""
    time.sleep(seconds)
    for rank in range(dist.get_world_size()):
        stack = next(part for part in ask(rank, "dump_traceback").split("\n\n") if " in main" in part)
        places = [f"{file}:{line} {function}" for file, line, function in FRAME.findall(stack)]
        entries = json.loads(ask(rank, "fr_trace_json")).get("entries", [])
        calls = [entry for entry in entries if entry["process_group"][1] == "default_pg"]
        made = CALL.format_map(calls[-1]) if calls else "no call yet"
        print(f"rank {rank}, innermost first: {' < '.join(places[:4])}\nrank {rank} made {made}")


def save(model: nn.Module) -> None:
    torch.save(model.state_dict(), io.BytesIO())
    dist.barrier()  # to be safe


def train(model: nn.Module, steps: int, save_every: int) -> None:
    for step in range(1, steps + 1):
        model(torch.ones(2, 4)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data -= 0.1 * p.grad / dist.get_world_size()
            p.grad = None
        if step % save_every == 0 and dist.get_rank() == 0:
            save(model)


@worker_main()
def main(timeout: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    if dist.get_rank() == 0:
        threading.Thread(target=look_after, args=(5,), daemon=True).start()
    torch.manual_seed(0)  # the same model on all ranks
    train(nn.Linear(4, 1), steps=5, save_every=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Hang.")
    parser.add_argument("--timeout", type=int, default=20, help="seconds, then gloo gives up")
    options = parser.parse_args()
    own = address(int(os.environ["RANK"]))
    os.environ["TORCH_WORKER_SERVER_SOCKET"] = own
    try:
        main(options.timeout)
    finally:
        Path(own).unlink(missing_ok=True)
