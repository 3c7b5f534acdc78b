"""Which layout for which model on how many GPUs? The planner tries all; a table has the fastest of each kind.

Tight plans, which fit by less than the error of memory, do not count. A star: it recomputes every block.

Run it:      python labs/lesson_28/proof_layouts.py
"""

from collections import Counter
from typing import NamedTuple

from rank_tools.planner import Layout, Network, Plan, Training, judge, model_named, propose, stack_named
from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run

KINDS = ("FSDP", "HSDP", "TP, CP", "PP")
MARGIN = 1.08  # what is slower by less counts as equal, and the first kind is taken
CARDS = {"400": 50e9, "100": 12.5e9}  # {Gb/s a GPU: bytes a second}


class Case(NamedTuple):
    """A model, sequences in a step, a number of GPUs."""

    model: str
    sequences: int
    gpus: int


CASES = (
    Case("8b", 512, 8),
    Case("8b", 512, 64),
    Case("8b", 512, 512),
    Case("8b", 2048, 2048),
    Case("8b", 512, 2048),
    Case("70b", 512, 64),
    Case("70b", 512, 512),
    Case("70b", 2048, 2048),
    Case("70b", 512, 2048),
    Case("405b", 2048, 512),
    Case("405b", 2048, 4096),
    Case("405b", 2048, 16384),
)


def kind_of(layout: Layout) -> str | None:
    """The kind of a layout; None: data parallelism that divides no parameters."""
    if layout.pp > 1:
        return "PP"
    if layout.tp * layout.cp > 1:
        return "TP, CP"
    if layout.replicate > 1:
        return "HSDP"
    return "FSDP" if layout.zero == 3 else None


def row_of(case: Case, card: float) -> dict[str, float | str | list[str]]:
    """{kind: seconds of the fastest roomy plan, or what most layouts fail by, "-" if there is none}.

    ``recomputed`` has the kinds whose fastest plan recomputes every block, ``plain`` those whose fastest plan
    divides no parameters among data-parallel ranks.
    """
    stack = stack_named("torch")
    model = model_named(case.model)
    training = Training(model, case.gpus, case.sequences, 1e12, network=Network(card=card), stack=stack)
    plans, rejected = propose(training)
    row: dict[str, float | str | list[str]] = {}
    recomputed, plain = [], []
    for kind in KINDS:
        of_kind = [plan for plan in plans if kind_of(plan.layout) == kind and not plan.tight]
        reasons = Counter(one.problems[0].kind for one in rejected if kind_of(one.layout) == kind)
        if of_kind:
            best = fastest(of_kind)
            row[kind] = best.time.total
            recomputed += [kind] if best.layout.recompute == "full" else []
            plain += [kind] if best.layout.zero != 3 else []
        else:
            row[kind] = reasons.most_common(1)[0][0] if reasons else "-"
    row["take"] = taken(row)
    row["recomputed"], row["plain"] = recomputed, plain
    return row


def fastest(plans: list[Plan]) -> Plan:
    return min(plans, key=lambda plan: plan.time.total)


def taken(row: dict[str, float | str | list[str]]) -> str:
    """The first kind that is as fast as the fastest, within the margin."""
    seconds = {kind: time for kind, time in row.items() if isinstance(time, float)}
    if not seconds:
        return "-"
    limit = MARGIN * min(seconds.values())
    return next(kind for kind in KINDS if seconds.get(kind, limit + 1) <= limit)


def check(rows: dict[str, dict[Case, dict]]) -> None:
    """What the lesson says of the table.

    Raises:
        CourseError: it is not so.
    """
    told = {
        ("400", Case("8b", 512, 64)): "FSDP",
        ("100", Case("8b", 512, 512)): "HSDP",
        ("400", Case("8b", 2048, 2048)): "HSDP",
        ("100", Case("8b", 2048, 2048)): "HSDP",
        ("400", Case("70b", 512, 64)): "PP",
        ("100", Case("70b", 512, 512)): "PP",
        ("400", Case("405b", 2048, 16384)): "PP",
    }
    for (card, case), kind in told.items():
        row = rows[card][case]
        if row["take"] != kind:
            raise CourseError(f"{case} at {card} Gb/s: the fastest is {row['take']}, not {kind}: {row}")
    for row in rows["400"], rows["100"]:
        for case, times in row.items():
            if isinstance(times["FSDP"], float) and case.gpus > case.sequences:
                raise CourseError(f"{case}: FSDP runs with less than a sequence on a GPU")
            if case.model == "70b" and case.gpus <= case.sequences:
                others = [kind for kind in KINDS[:-1] if isinstance(times[kind], float)]
                if times["recomputed"] != others:
                    raise CourseError(f"{case}: {times['recomputed']} recompute every block, not {others}")
            few = case == Case("8b", 512, 2048)
            if (times["plain"] and case.model != "8b") or (few and times["plain"] != ["TP, CP"]):
                raise CourseError(f"{case}: {times['plain']} with plain DP, not TP and CP of 8B alone")


def plan_of(dp: int, replicate: int, network: Network, recompute: str = "none") -> Plan:
    """Of 8B and 512 sequences in a step, by FSDP or HSDP alone, one sequence at a time."""
    stack = stack_named("torch")
    training = Training(model_named("8b"), dp * replicate, 512, 1e12, network=network, stack=stack)
    plan = judge(training, Layout(dp=dp, replicate=replicate, zero=3, recompute=recompute, stack=stack))
    assert isinstance(plan, Plan)
    return plan


def check_single() -> None:
    """What the lesson says of single layouts: FSDP's memory on 8 GPUs, and what the latency of a ring takes.

    Raises:
        CourseError: it is not so.
    """
    few = plan_of(8, 1, Network())
    held = f"{few.memory.total / 2**30:.1f}"
    if held != "71.6" or not few.tight:
        raise CourseError(f"FSDP of 8B on 8 GPUs holds {held} GiB, not 71.6, which is tight")
    selective = plan_of(8, 1, Network(), "op")
    told = f"{selective.memory.total / 2**30:.0f} GiB, {selective.time.total:.2f} s"
    if told != "53 GiB, 65.19 s":
        raise CourseError(f"with selective recomputation it takes {told}, not 53 GiB, 65.19 s")
    fast, slow = (Network(card=card, hop_inside=0.0, hop_between=0.0) for card in CARDS.values())
    times = [plan.time.total for plan in (plan_of(512, 1, slow), plan_of(32, 16, slow))]
    if any(f"{time:.2f}" != "1.13" for time in times):
        raise CourseError(f"without the latency of a ring FSDP and HSDP take {times} s, not both 1.13")
    lost = f"{plan_of(512, 1, fast).time.dp:.2f}"
    if lost != "0.10":
        raise CourseError(f"without the latency of a ring {lost} s are lost to communication, not 0.10")


def line_of(case: Case, rows: dict[str, dict[Case, dict]]) -> str:
    tokens = case.sequences * model_named(case.model).context // case.gpus
    line = f"{case.model:5} {case.gpus:6,} {tokens:10,}"
    for card in CARDS:
        row = rows[card][case]
        line += " |" + "".join(cell_of(row, kind) for kind in KINDS) + f" {row['take']:6}"
    return line.rstrip()


def cell_of(row: dict, kind: str) -> str:
    told = row[kind]
    if isinstance(told, float):
        told = f"{told:.2f}" if told < 100 else f"{told:.1f}"
    return f"{told:>7}{'*' if kind in row['recomputed'] else ' '}"


def main() -> None:
    check_single()
    rows = {name: {case: row_of(case, card) for case in CASES} for name, card in CARDS.items()}
    print(f"{'':24}" + "".join(f"| seconds at {card} Gb/s a GPU{'':14}" for card in CARDS))
    kinds = "".join(f"{kind:>7} " for kind in KINDS)
    print(f"model   GPUs tokens/GPU |{kinds} take   |{kinds} take")
    for case in CASES:
        print(line_of(case, rows))
    check(rows)
    record_results("28_layouts", {card: [[*case, row] for case, row in rows[card].items()] for card in rows})


if __name__ == "__main__":
    run(main)
