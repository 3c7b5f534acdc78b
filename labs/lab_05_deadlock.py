"""A ring in which every rank sends first and receives later: it stands still, and a timeout ends it.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_05_deadlock.py
Written by:  notebooks/05_ring_all_reduce.ipynb
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    timeout_s: float = 3.0  # the default of init_process_group is 30 minutes


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        # A group of its own for the deadlock: after a timeout the group is unusable.
        ring = dist.new_group(timeout=timedelta(seconds=cfg.timeout_s), backend="gloo")
        right, left = (group.rank + 1) % group.world_size, (group.rank - 1) % group.world_size
        mine, incoming = torch.ones(10), torch.empty(10)
        try:
            dist.send(mine, right, group=ring)  # returns once the neighbour receives, and it is sending too
            dist.recv(incoming, left, group=ring)
        except RuntimeError as error:
            # The first rank to give up closes its connections, and the others may hear of that instead.
            expected = ("Timed out waiting", "Connection", "closed")
            if not any(text in str(error) for text in expected):
                raise
        else:
            raise CourseError("the messages arrived, but the ranks should have waited for each other")
        print_in_rank_order(f"I gave up: my send to rank {right} waited for a receive that never came")

        cured = torch.empty(10, device=group.device)
        sendrecv(mine.to(group.device), right, cured, left)  # both under way before anyone waits
        assert cured.sum() == 10, f"ten ones were sent, {cured.tolist()} arrived"
        print_in_rank_order(f"with sendrecv: {len(cured)} numbers from rank {left}")


if __name__ == "__main__":
    run(main, Config())
