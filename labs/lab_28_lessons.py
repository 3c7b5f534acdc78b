"""Rows of lesson 22's table, measured again and held against the planner: calls, bytes, storage, peak.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_28_lessons.py
Written by:  notebooks/28_plan_a_cluster.ipynb

The planner knows nothing of these classes: it has the sizes of the model and the layout.
"""

import argparse

from lab_22_strategies import Config, Truths, rows_for
from lab_22_table import prove

from shared.planner import Layout, memory_of, traffic_of
from shared.planner.eager import peak
from shared.planner.memory import FLOAT64
from shared.planner.models import gpt
from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run

RANKS = 4
LAYOUTS = {
    "single": Layout(micro_batch=8),
    "DDP": Layout(dp=4, micro_batch=2),
    "ZeRO-1": Layout(dp=4, micro_batch=2, zero=1),
    "FSDP": Layout(dp=4, micro_batch=2, zero=3),
    "HSDP": Layout(dp=2, replicate=2, micro_batch=2, zero=3),
    "TP": Layout(tp=4, micro_batch=8),
    "TP + SP": Layout(tp=4, micro_batch=8, sequence_parallel=True),
    "PP, GPipe": Layout(pp=4, schedule="GPipe"),
    "PP, 1F1B": Layout(pp=4),
    "CP, ring": Layout(cp=4, micro_batch=8),
    "CP, Ulysses": Layout(cp=4, micro_batch=8, context="Ulysses"),
    "FSDP x TP": Layout(dp=2, tp=2, micro_batch=4, zero=3),
}
SHORT = ("ZeRO-1", "FSDP x TP", "PP, 1F1B", "CP, ring")  # one of each kind
PEAK_ALIKE = ("single", "ZeRO-1")  # the peak is that of a plain backward pass


def check_row(name: str, row: dict, rank: int, cfg: Config) -> dict:
    """Hold what this rank measured against the plan.

    Raises:
        CourseError: calls, bytes, storage or peak are others.
    """
    layout = LAYOUTS[name]
    sizes = cfg.gpt
    model = gpt("GPT of lesson 16", sizes.layers, sizes.width, sizes.heads, sizes.vocabulary, sizes.context)
    position = layout.position(rank) if layout.ranks > 1 else layout.position(0)
    found = {}
    for dimension, kinds in row["traffic"].items():
        own = "dp" if dimension == "shard" else dimension  # HSDP's dimensions are shard and replicate
        for op, counts in kinds.items():
            found[own, op] = (counts["calls"], counts["bytes"])
    planned = traffic_of(model, layout, cfg.rows, FLOAT64, position)
    if found != planned:
        raise CourseError(f"{name}: rank {rank} called {found}, planned was {planned}")
    memory = memory_of(model, layout, cfg.rows, FLOAT64, position)
    kept = list(row["keeps"].values())[:3]
    own = [memory.parameters, memory.gradients, memory.optimizer]
    if kept != own:
        raise CourseError(f"{name}: rank {rank} keeps {kept} bytes, planned was {own}")
    others = list(row["at peak"].values())[3]
    if name in PEAK_ALIKE:
        expected = peak(model, layout.micro_batch, cfg.rows)
        if others != expected:
            raise CourseError(f"{name}: {others} bytes at the peak besides, planned was {expected}")
    return {"keeps": own, "bytes": sum(size for _, size in planned.values()), "others at peak": others}


def main(cfg: Config, names: list[str]) -> None:
    with process_group(timeout_s=60) as group:
        if group.world_size != RANKS:
            raise InputError(f"the table has {RANKS} ranks, not {group.world_size}")
        unknown = sorted(set(names) - set(LAYOUTS))
        if unknown:
            raise InputError(f"there is no row {unknown[0]!r}: {list(LAYOUTS)}")
        truths = Truths(group, cfg)
        results = {}
        for row in rows_for(RANKS):
            if row.name not in names:
                continue
            measured = prove(row(truths.of(row), group, cfg))
            results[row.name] = check_row(row.name, measured, group.rank, cfg)
            sizes = results[row.name]
            peak_too = f", {sizes['others at peak']:,} besides at the peak" if row.name in PEAK_ALIKE else ""
            print_on_rank_0(
                f"{row.name:11} hands in {sizes['bytes']:,}, keeps {sum(sizes['keeps']):,} bytes{peak_too}"
            )
        print_on_rank_0("each, on every rank: calls, bytes and storage as planned")
        record_results("lab_28_lessons", results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Rows of lesson 22 beside the plan.")
    parser.add_argument("--all", action="store_true", help="all rows that the planner knows")
    run(main, Config(), list(LAYOUTS) if parser.parse_args().all else list(SHORT))
