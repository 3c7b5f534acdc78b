"""Rows of lesson 22's table, measured again and held against the planner: calls, bytes, storage.

``test_rank_tools`` runs it on four ranks. The planner knows nothing of these classes: it has the sizes of the
model and the layout. Where DDP adds up gradients over the ranks of cp, the table says cp and the planner dp.
"""

from dataclasses import replace

from rank_tools.planner import Layout, Model, memory_of, traffic_of
from rank_tools.planner.stack import FLOAT64, STACKS
from rank_tools.planner.transformer import Experts, gpt
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

from lesson_22.proof_table import prove, summed
from lesson_22.rows import Config
from lesson_22.strategies import Truths, rows_for

LAYOUTS = {
    "single": Layout(micro_batch=8),
    "DDP": Layout(dp=4, micro_batch=2),
    "ZeRO-1": Layout(dp=4, micro_batch=2, zero=1),
    "FSDP": Layout(dp=4, micro_batch=2, zero=3),
    "HSDP": Layout(dp=2, replicate=2, micro_batch=2, zero=3),
    "TP": Layout(tp=4, micro_batch=8),
    "TP + SP": Layout(tp=4, micro_batch=8, sequence_parallel=True),
    "PP, 1F1B": Layout(pp=4),
    "CP, ring": Layout(cp=4, micro_batch=8),
    "CP, Ulysses": Layout(cp=4, micro_batch=8, context="Ulysses"),
    "EP": Layout(dp=4, ep=4, micro_batch=2),
    "FSDP x TP": Layout(dp=2, tp=2, micro_batch=4, zero=3),
    "FSDP x CP": Layout(dp=2, cp=2, micro_batch=4, zero=3),
    "FSDP x EP": Layout(dp=4, ep=2, micro_batch=2, zero=3),
}
NAMES = {"shard": "dp", "dp_cp": "dp", "efsdp": "edp"}  # by the planner's names


def model_of(cfg: Config, experts: bool) -> Model:
    """Lesson 22's model, as the planner knows models."""
    sizes = cfg.gpt
    model = gpt("GPT of lesson 16", sizes.layers, sizes.width, sizes.heads, sizes.vocabulary, sizes.context)
    return replace(model, experts=Experts(cfg.experts, cfg.k, 0, 4 * sizes.width)) if experts else model


def check_row(name: str, experts: bool, row: dict, rank: int, cfg: Config) -> int:
    """Hold what this rank measured against the plan; return the bytes that it handed in.

    How many rows travel from one rank to another one's experts, the router decides: with EP the sums over all
    ranks are compared.

    Raises:
        CourseError: calls, bytes or storage are others.
    """
    layout = replace(LAYOUTS[name], stack=replace(STACKS["torch"], numbers=FLOAT64))
    model = model_of(cfg, experts)
    position = layout.position(rank if layout.ranks > 1 else 0)
    measured = {}
    for dimension, kinds in row["traffic"].items():
        for op, counts in kinds.items():
            own = "dp" if (dimension, op) == ("ep", "all_reduce") else NAMES.get(dimension, dimension)
            measured[own, op] = (counts["calls"], counts["bytes"])
    planned = traffic_of(model, layout, cfg.rows, position)
    for key in measured.keys() & planned.keys() & {("cp", "all_reduce")}:  # DDP sends it in two buckets
        measured[key] = (planned[key][0], measured[key][1])
    who = f"rank {rank}"
    if experts:
        who, measured, planned = "all ranks", summed(measured), summed(planned)
    if measured != planned:
        raise CourseError(f"{name}: {who} called {measured}, planned was {planned}")
    memory = memory_of(model, layout, cfg.rows, position)
    kept = list(row["keeps"].values())[:3]
    own = [memory.parameters, memory.gradients, memory.optimizer]
    if kept != own:
        raise CourseError(f"{name}: rank {rank} keeps {kept} bytes, planned was {own}")
    return sum(size for _, size in planned.values())


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        truths = Truths(group, cfg)
        for name, build in rows_for(group.world_size).items():
            if name in LAYOUTS:
                job = truths.job(name)
                size = check_row(name, job.experts, prove(name, build, job), group.rank, cfg)
                print_on_rank_0(f"{name:11} hands in {size:,} bytes")
        print_on_rank_0("each: calls, bytes and storage as planned, on every rank")


if __name__ == "__main__":
    run(main, Config())
