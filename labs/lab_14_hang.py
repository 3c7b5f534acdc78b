"""torch's PowerSGD over gloo: with several buckets it hangs when a rank is late, with one bucket it works.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_14_hang.py
Written by:  notebooks/14_less_communication.ipynb
"""

import logging
import sys
import threading
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs
from torch.nn.parallel import DistributedDataParallel as DDP

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

THREADS_OF_GLOO = 2  # of each process group, for its collectives


@dataclass(frozen=True)
class Config:
    layers: int = 6
    width: int = 64
    start: int = 2  # steps before compression begins
    late_s: float = 0.5  # the last rank begins its first compressed step so much later
    still_s: float = 1.5  # a rank whose threads have waited in the hook so long hangs
    patience_s: float = 60.0


class Training:
    """DDP with torch's PowerSGD, in a process group of its own; ``buckets`` counts those of a step."""

    def __init__(self, cap_mb: float, group: Group, cfg: Config) -> None:
        self.group = group
        self.cfg = cfg
        self.buckets = 0
        own_group = dist.new_group(backend="gloo")
        torch.manual_seed(0)
        layers = [nn.Linear(cfg.width, cfg.width) for _ in range(cfg.layers)]
        self.ddp = DDP(nn.Sequential(*layers), process_group=own_group, bucket_cap_mb=cap_mb)
        state = torchs.PowerSGDState(own_group, matrix_approximation_rank=1, start_powerSGD_iter=cfg.start)
        self.ddp.register_comm_hook(state, self.hook)

    def hook(
        self, state: torchs.PowerSGDState, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        self.buckets = max(self.buckets, bucket.index() + 1)
        return torchs.powerSGD_hook(state, bucket)

    def train(self) -> None:
        """Steps up to the first one that is compressed; in that one the last rank is late."""
        for step in range(self.cfg.start + 1):
            if step == self.cfg.start and self.group.rank == self.group.world_size - 1:
                time.sleep(self.cfg.late_s)
            self.ddp(torch.ones(4, self.cfg.width)).sum().backward()


def waiting_in_callbacks() -> int:
    """How many threads of this process are inside of torch's hook, but were not started by Python.

    Those are gloo's: they run what the hook attached to a future by ``then``.
    """
    known = [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]
    started_by_python = {thread.ident for thread in known}
    count = 0
    for thread, frame in sys._current_frames().items():
        while frame is not None and frame.f_code.co_filename != torchs.__file__:
            frame = frame.f_back
        count += int(frame is not None and thread not in started_by_python)
    return count


def watch(worker: threading.Thread, cfg: Config) -> str:
    """Wait until ``worker`` has ended, or all of gloo's threads stand still in callbacks."""
    start = time.monotonic()
    still_since = None
    while time.monotonic() < start + cfg.patience_s:
        worker.join(0.1)
        if not worker.is_alive():
            return "done"
        if waiting_in_callbacks() < THREADS_OF_GLOO:
            still_since = None
        elif still_since is None:
            still_since = time.monotonic()
        elif time.monotonic() > still_since + cfg.still_s:
            return f"hangs, and gloo's {THREADS_OF_GLOO} threads wait in the hook's callbacks"
    raise CourseError(f"after {cfg.patience_s:.0f} s neither done nor seen to hang")


def outcome(cap_mb: float, group: Group, cfg: Config) -> tuple[int, str]:
    """Buckets of a step, and what became of the training on rank 0."""
    training = Training(cap_mb, group, cfg)
    worker = threading.Thread(target=training.train, daemon=True)
    worker.start()
    verdict = [watch(worker, cfg)] if group.rank == 0 else [None]
    dist.broadcast_object_list(verdict)  # in the default group, which is free
    if verdict[0] == "done":
        worker.join(cfg.patience_s)
    if worker.is_alive() == (verdict[0] == "done"):
        raise CourseError(f"rank 0: {verdict[0]}, but here it is the other way round")
    return training.buckets, verdict[0]


def main(cfg: Config) -> None:
    logging.getLogger(torchs.__name__).setLevel(logging.ERROR)
    with process_group(timeout_s=60, smallest=2) as group:
        for cap_mb, expected in ((100, "done"), (0.01, "hangs")):
            buckets, said = outcome(cap_mb, group, cfg)
            print_on_rank_0(f"buckets: {buckets}; {said}")
            if not said.startswith(expected) or (buckets == 1) != (expected == "done"):
                raise CourseError(f"{buckets} bucket(s): {said}, expected: {expected}")
        dist.barrier()
        sys.stdout.flush()
        sys.exit(0)  # without destroy_process_group, which would wait for the threads that hang


if __name__ == "__main__":
    run(main, Config())
