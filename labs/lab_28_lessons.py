"""Rows of lesson 22's table, measured again and held against the planner: calls, bytes, storage, peak.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_28_lessons.py
Written by:  notebooks/28_plan_a_cluster.ipynb

The planner knows nothing of these classes: it has the sizes of the model and the layout.
"""

import argparse
from dataclasses import replace

from lab_22_strategies import Config, Strategy, Truths, rows_for
from lab_22_table import prove, summed

from shared.planner import Layout, Model, memory_of, traffic_of
from shared.planner.eager import peak
from shared.planner.memory import FLOAT64
from shared.planner.models import Experts, gpt
from shared.runtime.errors import CourseError, InputError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run

RANKS = 4
LAYOUTS = {
    "single": Layout(micro_batch=8),
    "DP by hand": Layout(dp=4, micro_batch=2, by_tensor=True),
    "DDP": Layout(dp=4, micro_batch=2),
    "ZeRO-1": Layout(dp=4, micro_batch=2, zero=1),
    "ZeRO-2": Layout(dp=4, micro_batch=2, zero=2, by_tensor=True),
    "FSDP": Layout(dp=4, micro_batch=2, zero=3),
    "HSDP": Layout(dp=2, replicate=2, micro_batch=2, zero=3),
    "TP": Layout(tp=4, micro_batch=8),
    "TP + SP": Layout(tp=4, micro_batch=8, sequence_parallel=True),
    "PP, GPipe": Layout(pp=4, schedule="GPipe"),
    "PP, 1F1B": Layout(pp=4),
    "CP, ring": Layout(cp=4, micro_batch=8),
    "CP, Ulysses": Layout(cp=4, micro_batch=8, context="Ulysses"),
    "EP": Layout(ep=4, micro_batch=2),
    "FSDP x TP": Layout(dp=2, tp=2, micro_batch=4, zero=3),
}
SHORT = ("ZeRO-1", "TP + SP", "PP, 1F1B", "EP")  # one of each kind
PEAK_ALIKE = ("single", "DP by hand", "ZeRO-1")  # the peak is that of a plain backward pass


def model_of(cfg: Config, experts: bool) -> Model:
    """Lesson 22's model, as the planner knows models."""
    sizes = cfg.gpt
    model = gpt("GPT of lesson 16", sizes.layers, sizes.width, sizes.heads, sizes.vocabulary, sizes.context)
    if experts:
        return replace(
            model, experts=Experts(routed=cfg.experts, chosen=cfg.k, shared=0, hidden=4 * sizes.width)
        )
    return model


def check_row(strategy: type[Strategy], row: dict, rank: int, cfg: Config) -> dict:
    """Hold what this rank measured against the plan.

    How many rows travel from one rank to another one's experts, the router decides. With EP the sums over
    all ranks are compared.

    Raises:
        CourseError: calls, bytes, storage or peak are others.
    """
    name = strategy.name
    layout = LAYOUTS[name]
    model = model_of(cfg, strategy.experts)
    position = layout.position(rank) if layout.ranks > 1 else layout.position(0)
    found = {}
    for dimension, kinds in row["traffic"].items():
        own = "dp" if dimension == "shard" else dimension  # HSDP's dimensions are shard and replicate
        for op, counts in kinds.items():
            found[own, op] = (counts["calls"], counts["bytes"])
    planned = traffic_of(model, layout, cfg.rows, FLOAT64, position)
    who = f"rank {rank}"
    if not strategy.even:
        who, found, planned = "all ranks", summed(found), summed(planned)
    if found != planned:
        raise CourseError(f"{name}: {who} called {found}, planned was {planned}")
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
    size = sum(size for _, size in planned.values())
    return {"keeps": own, "bytes": size, "others at peak": others}


def line_of(strategy: type[Strategy], sizes: dict) -> str:
    name = strategy.name
    who = "" if strategy.even else " on all ranks"
    peak_too = f", {sizes['others at peak']:,} besides at the peak" if name in PEAK_ALIKE else ""
    return f"{name:11} hands in {sizes['bytes']:,}{who}, keeps {sum(sizes['keeps']):,} bytes{peak_too}"


def main(cfg: Config, names: list[str]) -> None:
    with process_group(timeout_s=60) as group:
        if group.world_size != RANKS:
            raise InputError(f"the table has {RANKS} ranks, not {group.world_size}")
        truths = Truths(group, cfg)
        results = {}
        for row in rows_for(RANKS):
            if row.name not in names:
                continue
            measured = prove(row(truths.of(row), group, cfg))
            results[row.name] = check_row(row, measured, group.rank, cfg)
            print_on_rank_0(line_of(row, results[row.name]))
        print_on_rank_0("each: calls, bytes and storage as planned, on every rank")
        record_results("lab_28_lessons", results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Rows of lesson 22 beside the plan.")
    parser.add_argument("--all", action="store_true", help="the whole table")
    run(main, Config(), list(LAYOUTS) if parser.parse_args().all else list(SHORT))
