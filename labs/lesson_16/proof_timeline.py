"""When is each rank at work? Six schedules on simulated devices: by formula, by dependencies, executed.

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
from lesson_16.proof_halves import Config as MiddleStage
from lesson_16.proof_halves import costs
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
        "whole batch": (p - 1) / p,
        "GPipe": (p - 1) / (m + p - 1),
        "1F1B": (p - 1) / (m + p - 1),
        "Interleaved1F1B": (p - 1) / (2 * m + p - 1),
        "InterleavedZeroBubble": (p - 1) / (6 * m + p - 1),
        "ZBVZeroBubble": (p - 1) / (6 * m + p - 1),
    }


def plan_of(name: str, cfg: Config) -> tuple[list[list[Action]], int]:
    """The actions of each rank, and the number of micro-batches."""
    by_hand = {"whole batch": gpipe, "GPipe": gpipe, "1F1B": one_f_one_b}
    number = 1 if name == "whole batch" else cfg.micro_batches
    if name in by_hand:
        return [by_hand[name](rank, cfg.ranks, number) for rank in range(cfg.ranks)], number
    return order_table(name, cfg.ranks, number), number


def simulated(name: str, cfg: Config) -> tuple[Simulation, list[list[Action]], dict[str, float]]:
    """One schedule, its actions, and the seconds of each kind: the whole batch takes as long in all."""
    plan, number = plan_of(name, cfg)
    seconds = {kind: units * cfg.unit_s * cfg.micro_batches / number for kind, units in SECONDS.items()}
    return simulate(plan, number, seconds), plan, seconds


def on_devices(name: str, cfg: Config, message_s: float = 0.0) -> tuple[list[Span], list[Span]]:
    """What the devices did when they really waited for each other, and what dependencies alone make of it."""
    simulation, plan, _ = simulated(name, cfg)
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


def assert_same_order(name: str, executed: list[Span], simulation: Simulation, stages: int) -> None:
    """Each device did its actions in the schedule's order, and none began before its inputs were there."""
    computed = [span for span in executed if span.queue == COMPUTE]
    for device in {span.device for span in computed}:
        did = [span.what for span in computed if span.device == device]
        planned = [span.what for span in simulation.spans if span.device == device]
        if did != planned:
            raise CourseError(f"{name}: device {device} did {did}, the schedule says {planned}")
    by_name = {span.what: span for span in computed}
    for what, span in by_name.items():
        kind, stage, number = what.split()
        for source in inputs_of((kind, int(stage), int(number)), stages):
            before = name_of(source)
            if before not in by_name:
                before = before.replace("I", "B")
            if by_name[before].end > span.start:
                raise CourseError(f"{name}: {what} began before {before} had ended")


def steps_at_work(cfg: Config) -> dict[str, dict[str, float]]:
    """{schedule: {condition: how long a step takes, in forward passes of a stage of one of four ranks}}.

    "a slow head": the last rank has a quarter more to do than the others, all of it in the last stage.
    "recomputation": B is 3, because each block goes forward once more; not for lists with I and W.
    """
    p, m = cfg.ranks, cfg.micro_batches
    plans = {name: plan_of(name, cfg)[0] for name in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")}
    plans["ZB-H1"] = [[(kind, rank, n) for kind, n in zero_bubble_h1(rank, p, m)] for rank in range(p)]
    lengths = {}
    for name, plan in plans.items():
        last = stages_of(plan) - 1
        head = {last: 1 + 0.25 * (last + 1) / p}
        conditions = {"balanced": (SECONDS, None), "a slow head": (SECONDS, head)}
        if not any(kind == "I" for actions in plan for kind, _, _ in actions):
            conditions["recomputation"] = ({**SECONDS, "B": 3.0}, None)
        lengths[name] = {}
        for condition, (seconds, slower) in conditions.items():
            spans = simulate(plan, m, seconds, slower).spans
            lengths[name][condition] = max(span.end for span in spans)
    return lengths


def measure(name: str, cfg: Config) -> dict:
    """One schedule in three ways, which agree."""
    simulation, plan, seconds = simulated(name, cfg)
    executed, ideal = on_devices(name, cfg)
    measured = bubble(simulation.spans, cfg.ranks)
    expected = expected_bubbles(cfg)[name]
    if abs(measured - expected) > cfg.slack:
        raise CourseError(f"{name}: the bubble is {measured:.4f}, by formula {expected:.4f}")
    if abs(bubble(ideal, cfg.ranks) - measured) > cfg.slack:
        raise CourseError(
            f"{name}: the bubble of the devices is {bubble(ideal, cfg.ranks):.4f}, not {measured:.4f}"
        )
    assert_same_order(name, executed, simulation, stages_of(plan))
    with_messages = {}
    for message in cfg.messages if name in ("1F1B", "Interleaved1F1B") else ():
        _, spans = on_devices(name, cfg, message * cfg.unit_s)
        with_messages[message] = bubble(spans, cfg.ranks)
    idle = [idle_while_at_work(simulation.spans, rank) for rank in range(cfg.ranks)]
    lines = []
    for span in simulation.spans:
        lines.append([span.device, *span.what.split(), span.start / cfg.unit_s, span.end / cfg.unit_s])
    return {
        "bubble": measured,
        "with messages": with_messages,
        "live": simulation.peak_live,
        "idle while at work": max(idle) / cfg.unit_s,
        "lines": lines,  # rank, kind, stage, micro-batch, start, end, in units
    }


def main(cfg: Config) -> None:
    results = {name: measure(name, cfg) for name in expected_bubbles(cfg)}
    for name, result in results.items():
        live = ", ".join(f"{number:g}" for number in result["live"])
        waits = f"waits {result['idle while at work']:4.1f} in between"
        print(f"{name:21s} bubble {result['bubble']:.3f}, a rank {waits}; micro-batches held: {live}")
    if results["ZBVZeroBubble"]["idle while at work"] > cfg.slack:
        raise CourseError("ZBV: a rank waits between its first and its last action")
    plain, interleaved = (results[name]["with messages"] for name in ("1F1B", "Interleaved1F1B"))
    for message in cfg.messages:
        told = f"1F1B {plain[message]:.3f}, Interleaved1F1B {interleaved[message]:.3f}"
        print(f"messages of {message:g} forward passes: {told}")
    if not (interleaved[cfg.messages[0]] < plain[cfg.messages[0]]):
        raise CourseError("short messages were to leave Interleaved1F1B its advantage")
    if not (interleaved[cfg.messages[-1]] > plain[cfg.messages[-1]]):
        raise CourseError("slow messages were to turn the advantage of Interleaved1F1B around")
    flops = costs(MiddleStage())
    for name in ("1F1B", "ZBVZeroBubble"):
        plan, number = plan_of(name, cfg)
        length = max(span.end for span in simulate(plan, number, flops).spans)
        print(f"if FLOPs were time: a step of {name} takes {length:.1f} forward passes")
    lengths = steps_at_work(cfg)
    for name, of_conditions in lengths.items():
        print(f"{name:15s} " + ", ".join(f"{what} {length:.1f}" for what, length in of_conditions.items()))
    if lengths["ZB-H1"]["a slow head"] < lengths["1F1B"]["balanced"]:
        raise CourseError("a slow head should have eaten all that ZB-H1 gains")
    record_results("16_timeline", {"schedules": results, "lengths": lengths})


if __name__ == "__main__":
    run(main, Config())
