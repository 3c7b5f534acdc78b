"""When is each rank at work? Schedules on simulated devices: by formula, by dependencies, executed.

Run it:      python labs/lesson_16/proof_timeline.py
"""

from dataclasses import dataclass

import torch

from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.schedules import (
    SECONDS,
    Simulation,
    idle_while_at_work,
    inputs_of,
    name_of,
    order_table,
    simulate,
    stages_of,
)
from shared.training.timeline import COMPUTE, SimulatedDevices, Span, Task, bubble

from lab_16_executor import Action, gpipe, one_f_one_b
from lesson_16.solution import schedule as zero_bubble_h1


@dataclass(frozen=True)
class Config:
    ranks: int = 4
    micro_batches: int = 8
    unit_s: float = 0.002  # forward of one stage of four for one micro-batch
    messages: tuple[float, ...] = (0.03, 0.1, 0.25)  # what a message takes, in units
    slack: float = 1e-9


def expected_bubbles(cfg: Config) -> dict[str, float]:
    """{schedule: the bubble by formula}. With v stages per rank, filling takes 1/v of the time."""
    p, m = cfg.ranks, cfg.micro_batches
    return {
        "GPipe": (p - 1) / (m + p - 1),
        "1F1B": (p - 1) / (m + p - 1),
        "Interleaved1F1B": (p - 1) / (2 * m + p - 1),
        "ZB-H1": (p - 1) / (3 * m + p - 1),
        "InterleavedZeroBubble": (p - 1) / (6 * m + p - 1),
        "ZBVZeroBubble": (p - 1) / (6 * m + p - 1),
    }


def plan_of(name: str, cfg: Config) -> list[list[Action]]:
    """The actions of each rank."""
    p, m = cfg.ranks, cfg.micro_batches
    if name == "ZB-H1":
        return [[(kind, rank, number) for kind, number in zero_bubble_h1(rank, p, m)] for rank in range(p)]
    by_hand = {"GPipe": gpipe, "1F1B": one_f_one_b}
    if name in by_hand:
        return [by_hand[name](rank, p, m) for rank in range(p)]
    return order_table(name, p, m)


def simulated(plan: list[list[Action]], cfg: Config) -> Simulation:
    return simulate(plan, cfg.micro_batches, {kind: units * cfg.unit_s for kind, units in SECONDS.items()})


def on_devices(
    plan: list[list[Action]], cfg: Config, message_s: float = 0.0
) -> tuple[list[Span], list[Span]]:
    """What the devices did when they really waited for each other, and what dependencies alone make of it."""
    simulation = simulated(plan, cfg)
    stages = stages_of(plan)
    with SimulatedDevices(cfg.ranks, alpha_s=message_s) as devices:
        tasks: dict[str, Task] = {}
        arrived: dict[str, Task] = {}  # at the rank that needs it, if that is another one
        rank_of = {span.what: span.device for span in simulation.spans}
        for span in sorted(simulation.spans, key=lambda span: (span.end, span.device)):
            kind, stage, number = span.what.split()
            action = (kind, int(stage), int(number))
            needed = []
            for source in inputs_of(action, stages):
                done = find(source, tasks)
                needed.append(arrived.get(f"{done} on {span.device}", tasks[done]))
            task = devices.compute(span.device, span.what, span.end - span.start, first_of, *needed)
            tasks[span.what] = task
            for target in targets_of(action, stages, rank_of):
                if target != span.device:
                    arrived[f"{span.what} on {target}"] = devices.send(task, target, span.what)
        return devices.finish(), devices.ideal()


def first_of(*values: torch.Tensor) -> torch.Tensor:
    """What an action makes; its size plays no role here."""
    return values[0] if values else torch.zeros(1)


def find(action: Action, done: dict[str, Task]) -> str:
    """The name of an input; the gradient may come from an I or from a whole B."""
    kind, stage, number = action
    name = name_of(action)
    return name if name in done else name_of(("B" if kind == "I" else kind, stage, number))


def targets_of(action: Action, stages: int, rank_of: dict[str, int]) -> list[int]:
    """The rank of the stage that goes on with what an action makes."""
    kind, stage, number = action
    following = {"F": stage + 1, "B": stage - 1, "I": stage - 1}.get(kind, -1)
    if not 0 <= following < stages:
        return []
    return [rank_of[name_of(("F", following, number))]]


def at_work(plan: list[list[Action]], cfg: Config) -> list[str]:
    """How long a step takes, in forward passes, with a slow head and if blocks recompute.

    A slow head: the last rank has a quarter more to do than the others, all of it in the last stage.
    Recomputation: B is 3, because each block goes forward once more; not for lists with I and W.
    """
    last = stages_of(plan) - 1
    conditions = [(SECONDS, {last: 1 + 0.25 * (last + 1) / cfg.ranks})]
    if not any(kind == "I" for actions in plan for kind, _, _ in actions):
        conditions.append(({**SECONDS, "B": 3.0}, None))
    lengths = [end_of(simulate(plan, cfg.micro_batches, *condition).spans) for condition in conditions]
    return [f"{length:.1f}" for length in lengths] + ["-"] * (2 - len(lengths))


def end_of(spans: list[Span]) -> float:
    return max(span.end for span in spans)


def measure(name: str, cfg: Config) -> dict:
    """One schedule in three ways, which agree."""
    plan = plan_of(name, cfg)
    simulation = simulated(plan, cfg)
    executed, ideal = on_devices(plan, cfg)
    measured = bubble(simulation.spans, cfg.ranks)
    expected = expected_bubbles(cfg)[name]
    if abs(measured - expected) > cfg.slack:
        raise CourseError(f"{name}: the bubble is {measured:.4f}, by formula {expected:.4f}")
    on_them = bubble(ideal, cfg.ranks)
    if abs(on_them - measured) > cfg.slack:
        raise CourseError(f"{name}: the bubble of the devices is {on_them:.4f}, not {measured:.4f}")
    planned = [[span.what for span in simulation.spans if span.device == rank] for rank in range(cfg.ranks)]
    for rank in range(cfg.ranks):
        did = [span.what for span in executed if span.queue == COMPUTE and span.device == rank]
        if did != planned[rank]:
            raise CourseError(f"{name}: device {rank} did {did}, the schedule says {planned[rank]}")
    with_messages = []
    for message in cfg.messages if name in ("1F1B", "Interleaved1F1B") else ():
        _, spans = on_devices(plan, cfg, message * cfg.unit_s)
        with_messages.append(bubble(spans, cfg.ranks))
    idle = [idle_while_at_work(simulation.spans, rank) for rank in range(cfg.ranks)]
    lines = []
    for span in simulation.spans:
        lines.append([span.device, *span.what.split(), span.start / cfg.unit_s, span.end / cfg.unit_s])
    return {
        "length": end_of(simulation.spans) / cfg.unit_s,
        "bubble": measured,
        "with messages": with_messages,
        "live": simulation.peak_live,
        "at work": at_work(plan, cfg),
        "idle while at work": max(idle) / cfg.unit_s,
        "lines": lines,  # rank, kind, stage, micro-batch, start, end, in units
    }


def main(cfg: Config) -> None:
    results = {name: measure(name, cfg) for name in expected_bubbles(cfg)}
    print(f"{'schedule':22}{'step':>5}{'bubble':>8}{'slow head':>11}{'recompute':>11}  micro-batches held")
    for name, result in results.items():
        slow, recompute = result["at work"]
        live = ", ".join(f"{number:g}" for number in result["live"])
        print(f"{name:22}{result['length']:5.1f}{result['bubble']:8.1%}{slow:>11}{recompute:>11}  {live}")
    if results["ZBVZeroBubble"]["idle while at work"] > cfg.slack:
        raise CourseError("ZBV: a rank waits between its first and its last action")
    if float(results["ZB-H1"]["at work"][0]) < results["1F1B"]["length"] - cfg.slack:
        raise CourseError("a slow head should have eaten all that ZB-H1 gains")
    plain, interleaved = (results[name]["with messages"] for name in ("1F1B", "Interleaved1F1B"))
    for message, one, two in zip(cfg.messages, plain, interleaved, strict=True):
        print(
            f"bubble with messages of {message:g} forward passes: 1F1B {one:.1%}, Interleaved1F1B {two:.1%}"
        )
    if not interleaved[0] < plain[0]:
        raise CourseError("short messages should have left Interleaved1F1B its advantage")
    if not interleaved[-1] > plain[-1]:
        raise CourseError("slow messages should have turned the advantage of Interleaved1F1B around")
    record_results("16_timeline", {"schedules": results})


if __name__ == "__main__":
    run(main, Config())
