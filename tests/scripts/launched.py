"""Which all-reduces `launched` finds: by hand, in two dtypes, and those that DDP begins in C++."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.launched import all_reduces
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.run import run


def by_hand() -> None:
    dist.all_reduce(torch.ones(100))
    dist.broadcast(torch.ones(7), src=0)
    dist.all_reduce(torch.ones(3, dtype=torch.int64))


def main() -> None:
    with process_group(report=False) as group:
        ddp = DistributedDataParallel(nn.Linear(10, 4, dtype=torch.float64))
        x = torch.ones(2, 10, dtype=torch.float64) * group.rank
        print_in_rank_order(f"by hand {all_reduces(by_hand)}")
        print_in_rank_order(f"nothing {all_reduces(lambda: None)}")
        print_in_rank_order(f"DDP {all_reduces(lambda: ddp(x).sum().backward())}")


if __name__ == "__main__":
    run(main)
