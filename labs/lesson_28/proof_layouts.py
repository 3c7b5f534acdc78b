"""Which layout for which model on how many GPUs? The planner tries all; a table has the fastest of each kind.

Run it:      python labs/lesson_28/proof_layouts.py
"""

from collections import Counter

from rank_tools.planner import Layout, Plan, Rejected, Training, model_named, propose, stack_named
from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run

KINDS = ("FSDP", "HSDP", "TP", "PP")
MARGIN = 1.08  # what is slower by less counts as equal, and the first kind is taken
SHARDS = (8, 16, 32, 64, 128)  # of HSDP
TABLE = {  # {model: sequences in a step, numbers of GPUs}
    "8b": (512, (8, 64, 512, 2048)),
    "70b": (512, (8, 64, 512, 2048)),
    "405b": (2048, (512, 4096, 16384)),
}


def kind_of(layout: Layout) -> str | None:
    """The kind of a layout without CP; None: data parallelism that divides no parameters."""
    if layout.pp > 1:
        return "PP"
    if layout.tp > 1:
        return "TP"
    if layout.replicate > 1:
        return "HSDP"
    return "FSDP" if layout.zero == 3 else None


def tried(training: Training) -> tuple[list[Plan], list[Rejected]]:
    """All layouts without CP: those that run, and those that do not."""
    plans, rejected = propose(training, cp=1)
    for shards in SHARDS:
        if shards < training.gpus:
            copies = training.gpus // shards
            more, failed = propose(training, tp=1, cp=1, pp=1, zero=3, dp=shards, replicate=copies)
            plans = plans + more
            rejected = rejected + failed
    return plans, rejected


def row_of(training: Training) -> dict[str, float | str]:
    """{kind: seconds of the fastest plan, or what most of its layouts fail by, "-" if there is none}."""
    plans, rejected = tried(training)
    row: dict[str, float | str] = {}
    for kind in KINDS:
        times = [plan.time.total for plan in plans if kind_of(plan.layout) == kind]
        reasons = Counter(one.problems[0].kind for one in rejected if kind_of(one.layout) == kind)
        if times:
            row[kind] = min(times)
        else:
            row[kind] = reasons.most_common(1)[0][0] if reasons else "-"
    return row


def taken(row: dict[str, float | str]) -> str:
    """The first kind that is as fast as the fastest, within the margin."""
    seconds = {kind: time for kind, time in row.items() if isinstance(time, float)}
    if not seconds:
        return "-"
    limit = MARGIN * min(seconds.values())
    return next(kind for kind in KINDS if seconds.get(kind, limit + 1) <= limit)


def check(rows: dict[str, dict[int, dict]]) -> None:
    """What the lesson says of the table.

    Raises:
        CourseError: FSDP runs somewhere and is not taken, or with less than a sequence a GPU it runs.
    """
    for model, by_gpus in rows.items():
        for gpus, row in by_gpus.items():
            runs = isinstance(row["FSDP"], float)
            if runs and row["take"] != "FSDP":
                raise CourseError(f"{model} on {gpus} GPUs: FSDP takes {row['FSDP']:.2f} s, of {row}")
            if runs and gpus > TABLE[model][0]:
                raise CourseError(f"{model} on {gpus} GPUs: FSDP runs with less than a sequence a GPU")


def main() -> None:
    stack = stack_named("torch")
    rows: dict[str, dict[int, dict]] = {}
    print("model   GPUs  tokens/GPU/step" + "".join(f"{kind:>9}" for kind in KINDS) + "   take")
    for name, (sequences, sizes) in TABLE.items():
        model = model_named(name)
        rows[name] = {}
        for gpus in sizes:
            training = Training(model, gpus, sequences, tokens=1e12, stack=stack)
            row = row_of(training)
            row["take"] = taken(row)
            rows[name][gpus] = row
            cells = [f"{row[kind]:.2f} s" if isinstance(row[kind], float) else row[kind] for kind in KINDS]
            tokens = sequences * model.context // gpus
            print(
                f"{name:5} {gpus:6,} {tokens:16,}" + "".join(f"{cell:>9}" for cell in cells),
                f"  {row['take']}",
            )
    check(rows)
    record_results("28_layouts", rows)


if __name__ == "__main__":
    run(main)
