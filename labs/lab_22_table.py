"""The table: parity, calls, bytes, storage and bubble of every strategy, each held against its formula.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_22_table.py
Written by:  notebooks/22_device_mesh.ipynb

With 8 ranks: PP x FSDP x TP. ``--only "FSDP x TP" --only DDP`` runs these rows, and records nothing.
"""

import argparse
from collections.abc import Iterable

import torch
import torch.distributed as dist
from lab_22_strategies import Config, Strategy, Traffic, Truths, rows_for

from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError, InputError, ParityError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.one_process import Step, assert_same_training
from shared.training.storages import PeakByKind, local_of

SHORT = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "all_to_all": "A2A", "send": "sends"}


class Held:
    """The parameters that a rank holds between two steps, as ``PeakByKind`` looks at a model."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.held = list(parameters)

    def parameters(self) -> list[torch.Tensor]:
        return self.held

    def buffers(self) -> list[torch.Tensor]:
        return []


def global_norm(strategy: Strategy) -> torch.Tensor:
    """The norm of the whole gradient, from what each rank holds of it. Collective; taught in this lesson.

    A number of the gradient may lie on several ranks. Each of them adds its square divided by the number of
    these ranks, so that the sum over all ranks has it once, however a strategy divides and repeats.
    """
    held = {name: local_of(gradient) for name, gradient in strategy.gradients().items()}
    whole = strategy.truth.start
    numbers = torch.tensor([held[name].numel() if name in held else 0 for name in whole])
    numbers = numbers.to(strategy.group.device)
    dist.all_reduce(numbers)
    total = torch.zeros((), dtype=strategy.cfg.gpt.dtype, device=strategy.group.device)
    for (name, parameter), count in zip(whole.items(), numbers.tolist(), strict=True):
        if count % parameter.numel():
            raise CourseError(f"{name}: the ranks hold {count} numbers of {parameter.numel()}")
        if name in held:
            total += held[name].square().sum() / (count // parameter.numel())
    dist.all_reduce(total)
    return total.sqrt()


def found_traffic(strategy: Strategy, log: CommRecord) -> dict[str, dict[str, dict[str, float]]]:
    """{dimension: {collective: {"calls", "bytes" handed in, "by_rule": bytes to be sent}}} of a step."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for call in log.calls:
        if call.ranks not in strategy.dimension_of:
            raise CourseError(f"{strategy.name}: a {call.op} among ranks {call.ranks}, no group of its mesh")
        of_dimension = found.setdefault(strategy.dimension_of[call.ranks], {})
        row = of_dimension.setdefault(call.op, {"calls": 0, "bytes": 0, "by_rule": 0.0})
        row["calls"] += 1
        row["bytes"] += call.bytes
        row["by_rule"] += call.by_rule
    return found


def check_traffic(strategy: Strategy, found: dict) -> None:
    """Hold calls and bytes against the formula; a strategy that is not even, in the sum over the ranks."""
    mine = {}
    for dimension, kinds in found.items():
        for op, row in kinds.items():
            mine[dimension, op] = (row["calls"], row["bytes"])
    expected = {key: counts for key, counts in strategy.traffic().items() if counts[0]}
    if not strategy.even:
        mine, expected = summed(mine), summed(expected)
    if mine != expected:
        raise CourseError(f"{strategy.name}: a step calls {in_words(mine)}, expected {in_words(expected)}")


def summed(traffic: Traffic) -> Traffic:
    """Over all ranks. Collective."""
    everyone: list[Traffic] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, traffic)
    keys = {key for one in everyone for key in one}
    total = {}
    for key in sorted(keys):
        calls = sum(one[key][0] for one in everyone if key in one)
        total[key] = (calls, sum(one[key][1] for one in everyone if key in one))
    return total


def in_words(traffic: Traffic) -> str:
    parts = [f"{dimension} {op} {counts}" for (dimension, op), counts in sorted(traffic.items())]
    return ", ".join(parts) or "nothing"


def check_keeps(strategy: Strategy, memory: PeakByKind) -> dict[str, int]:
    """Hold what is in store after a step against the formula."""
    found = memory.by_kind()
    expected = strategy.keeps()
    for kind, size in expected.items():
        if found[kind] != size:
            raise CourseError(f"{strategy.name}: {kind} of {found[kind]:,} bytes, expected {size:,}")
    return {kind: found[kind] for kind in expected}


def check_parity(strategy: Strategy, ours: list[Step]) -> float:
    """Loss, every gradient and every parameter after each step, and the norm of the last gradient."""
    tolerance = strategy.cfg.tolerance
    alone = strategy.truth.steps
    gradients = [Step(step.loss, step.gradients) for step in ours]
    parameters = [Step(step.loss, {}, step.parameters) for step in ours]
    alone_gradients = [Step(step.loss, step.gradients) for step in alone]
    alone_parameters = [Step(step.loss, {}, step.parameters) for step in alone]
    largest = max(
        assert_same_training(strategy.name, gradients, alone_gradients, tolerance, strategy.gradient_part),
        assert_same_training(strategy.name, parameters, alone_parameters, tolerance, strategy.parameter_part),
    )
    norm = global_norm(strategy)
    off = abs((norm - strategy.truth.norms[-1]).item())
    if not off <= tolerance:
        raise ParityError(f"{strategy.name}: the norm of the gradient is {norm:.6f}, off by {off:.1e}")
    return max(largest, off)


def prove(strategy: Strategy) -> dict:
    """Train, compare, and measure the last step: the numbers of this rank."""
    ours = []
    for number in range(strategy.cfg.steps - 1):
        ours.append(strategy.finish_step(strategy.step(number)))
    held = Held([*strategy.parameters().values(), *strategy.also_held()])
    with record() as log, PeakByKind(held, strategy.optimizer) as memory:
        loss = strategy.step(strategy.cfg.steps - 1)
    ours.append(strategy.finish_step(loss))
    traffic = found_traffic(strategy, log)
    check_traffic(strategy, traffic)
    strategy.check()
    return {
        "difference": check_parity(strategy, ours),
        "mesh": strategy.sizes,
        "size": strategy.truth.size,
        "traffic": traffic,
        "keeps": check_keeps(strategy, memory),
        "at peak": memory.at_peak,
        "bubble": strategy.bubble,
    }


def sent(row: dict) -> float:
    """Bytes that this rank sends in a step, in the way that sends least."""
    return sum(one["by_rule"] for kinds in row["traffic"].values() for one in kinds.values())


def calls_in_words(row: dict) -> str:
    """Such as ``dp: 9 AG + 5 RS; tp: 21 AR``. What is received was sent by somebody, and is left out."""
    texts = []
    for dimension in row["mesh"]:
        kinds = row["traffic"].get(dimension, {})
        counts = [f"{kinds[op]['calls']} {short}" for op, short in SHORT.items() if op in kinds]
        texts.append(f"{dimension}: {' + '.join(counts)}")
    return "; ".join(texts) or "none"


def line_of(name: str, everyone: list[dict]) -> str:
    """A line of the table. Where ranks differ, it shows the one that sends, or holds, the most."""
    size = everyone[0]["size"]
    most = max(everyone, key=sent)
    kept = [max(row["keeps"][kind] for row in everyone) / size for kind in everyone[0]["keeps"]]
    peak = max(sum(row["at peak"].values()) for row in everyone) / size
    numbers = [sent(most) / size, *kept, peak, everyone[0]["bubble"]]
    columns = " ".join(f"{number:6.2f}" for number in numbers)
    return f"{name:15} {calls_in_words(most):48} {columns}"


HEADING = f"{'strategy':15} {'calls of a step':48} {'sends':>6} {'params':>6} {'grads':>6} {'state':>6}" + (
    f" {'peak':>6} {'bubble':>6}"
)


def chosen(ranks: int, only: list[str]) -> list[type[Strategy]]:
    rows = rows_for(ranks)
    unknown = sorted(set(only) - {row.name for row in rows})
    if unknown:
        raise InputError(f"with {ranks} ranks there is no row {unknown[0]!r}: {[row.name for row in rows]}")
    return [row for row in rows if not only or row.name in only]


def main(cfg: Config, only: list[str]) -> None:
    with process_group(timeout_s=60) as group:
        truths = Truths(group, cfg)
        results = {}
        rows = chosen(group.world_size, only)
        print_on_rank_0(f"bytes are multiples of S, the bytes of all parameters\n{HEADING}")
        for row in rows:
            results[row.name] = prove(row(truths.of(row), group, cfg))
            everyone = [results[row.name]] * group.world_size
            dist.all_gather_object(everyone, results[row.name])
            print_on_rank_0(line_of(row.name, everyone))
        print_on_rank_0(
            "all: loss, gradients, parameters, norm as one process; calls, bytes, storage as the formula"
        )
        if not only:
            record_results("lab_22_table", results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="All strategies in one table.")
    parser.add_argument("--only", action="append", default=[], help="a row, such as DDP; may be repeated")
    run(main, Config(), parser.parse_args().only)
