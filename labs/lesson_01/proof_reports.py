"""Every rank reports all that it was told, and every rank checks the reports of all.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_01/proof_reports.py
"""

import os
import sys
from dataclasses import dataclass

import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.results import record_results
from shared.runtime.run import run

from lab_01_who import who_am_i

DOCUMENTED = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "PYTHON_EXEC",
)


@dataclass(frozen=True)
class Config:
    record: str = "proof_reports"  # name under which the reports are recorded


def reference(mine: dict, reports: list[dict]) -> int:
    """My rank, found by counting: all processes on nodes before mine, then those before me."""
    before = [other for other in reports if other["node"] < mine["node"]]
    return len(before) + mine["local_rank"]


def check(mine: dict, reports: list[dict]) -> None:
    """Raise ``CourseError`` unless the reports of all ranks fit together."""
    here = [other for other in reports if other["node"] == mine["node"]]
    ranks = [report["rank"] for report in reports]
    local_ranks = [report["local_rank"] for report in here]
    nodes = {report["node"] for report in reports}
    processes = {(report["node"], report["pid"]) for report in reports}
    facts = {
        "ranks count from 0": ranks == list(range(mine["world_size"])),
        "local ranks count from 0": local_ranks == list(range(mine["local_world_size"])),
        "the rank is what counting gives": mine["rank"] == reference(mine, reports),
        "each node has reported": nodes == set(range(mine["nodes"])),
        "each rank is a process of its own": len(processes) == len(reports),
        "the group agrees": (dist.get_rank(), dist.get_world_size()) == (mine["rank"], mine["world_size"]),
    }
    wrong = [fact for fact, holds in facts.items() if not holds]
    if wrong:
        raise CourseError(f"not true: {'; '.join(wrong)}")


def my_report() -> dict:
    """Who this process is, and what torchrun told it."""
    me = who_am_i()
    return {
        "rank": me["RANK"],
        "local_rank": me["LOCAL_RANK"],
        "world_size": me["WORLD_SIZE"],
        "local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]),
        "node": int(os.environ["GROUP_RANK"]),
        "nodes": int(os.environ["GROUP_WORLD_SIZE"]),
        "pid": os.getpid(),
        "variables": {name: os.environ.get(name) for name in DOCUMENTED},
    }


def main(cfg: Config) -> None:
    with process_group(timeout_s=90) as group:
        mine = my_report()
        reports: list[dict] = [None] * group.world_size
        dist.all_gather_object(reports, mine)  # afterwards every rank holds the reports of all, by rank
        check(mine, reports)
        place = f"local rank {mine['local_rank']} of {mine['local_world_size']} on node {mine['node']}"
        print_in_rank_order(f"{place}; the {len(reports)} reports fit together")
        record_results(cfg.record, mine)


if __name__ == "__main__":
    run(main, Config(*sys.argv[1:2]))
