"""Check of exercise 28. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from dataclasses import replace
from types import ModuleType

from shared.planner import Layout, Plan, Rejected, Training, judge, model_named, propose
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

MOST = 256
ENOUGH = 1.02  # a plan may cost so much more than the cheapest
# {what: training, days, dollars}
TASKS = {
    "Llama 3 8B": (Training(model_named("8b"), 8, 512, 1e12), 30, 250_000),
    "Llama 3 70B": (Training(model_named("70b", 32768), 8, 128, 5e11), 45, 700_000),
}


def cheapest(training: Training, days: float) -> float:
    """Dollars of the cheapest plan with a power of two of GPUs."""
    found = []
    gpus = 8
    while gpus <= MOST:
        plans, _ = propose(replace(training, gpus=gpus))
        found += [plan.dollars for plan in plans if plan.days <= days]
        gpus *= 2
    return min(found)


def check_task(what: str, answer: ModuleType) -> float:
    """Raise Wrong unless the answer fits; return its dollars."""
    training, days, dollars = TASKS[what]
    found = answer.plan(training, MOST, days, dollars)
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Layout):
        raise Wrong(f"{what}: expected a number of GPUs and a Layout, not {found!r}")
    gpus, layout = found
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 8 <= gpus <= MOST or gpus % 8:
        raise Wrong(f"{what}: GPUs come in nodes of 8, at most {MOST}, not {gpus!r}")
    judged = judge(replace(training, gpus=gpus), layout)
    if isinstance(judged, Rejected):
        told = "; ".join(problem.text for problem in judged.problems)
        raise Wrong(f"{what}: on {gpus} GPUs this cannot run: {told}")
    assert isinstance(judged, Plan)
    if judged.days > days:
        raise Wrong(f"{what}: it takes {judged.days:.0f} days on {gpus} GPUs, allowed are {days}")
    if judged.dollars > dollars:
        raise Wrong(f"{what}: it costs {judged.dollars:,.0f} dollars on {gpus} GPUs, there are {dollars:,}")
    least = cheapest(training, days)
    if judged.dollars > ENOUGH * least:
        raise Wrong(
            f"{what}: it fits, but a plan for {least:,.0f} dollars fits too; this is {judged.dollars:,.0f}"
        )
    return judged.dollars


def verify(answer: ModuleType, group: Group) -> str:
    for what in list(TASKS)[group.rank % len(TASKS) :: group.world_size]:
        check_task(what, answer)
    return f"{len(TASKS)} trainings fit into memory, days and dollars, and none is much cheaper. Well done."


if __name__ == "__main__":
    check_exercise("28_plan", verify, timeout_s=60)  # to search takes seconds
