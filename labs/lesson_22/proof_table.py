"""The table: parity, calls, bytes, storage and peak of every strategy, held against formulas.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_22/proof_table.py

With 8 ranks: PP x FSDP x TP. ``--only "FSDP x TP" --only DDP`` runs these rows, and records nothing.
"""

import argparse
from collections.abc import Iterable

import torch
import torch.distributed as dist

from shared.comm.kernel import wire_bytes
from shared.comm.record import CommRecord
from shared.runtime.errors import CourseError, InputError, ParityError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.one_process import Step, assert_same_training
from shared.training.storages import local_of

from lesson_22.memory import Held, Memory, Watch, dimension, look_before_backward
from lesson_22.rows import Config, Job, Row, Traffic, kinds
from lesson_22.strategies import Build, Truths, rows_for


def gradients_of(row: Row) -> dict[str, torch.Tensor]:
    if row.gradients is not None:
        return row.gradients()
    return {name: p.grad for name, p in row.named()}


def copied(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: local_of(tensor).detach().clone() for name, tensor in tensors}


def finish_step(row: Row, loss: torch.Tensor) -> Step:
    """What a step has left behind here; the loss is that of the whole batch. Collective."""
    total = loss * row.share
    dist.all_reduce(total)
    return Step(total, copied(gradients_of(row).items()), copied(row.named()))


def global_norm(row: Row, job: Job) -> torch.Tensor:
    """The norm of the whole gradient, from what each rank holds of it. Collective; taught in this lesson.

    An element of the gradient may be on several ranks. Each of them adds its square divided by the number of
    these ranks, so that the sum over all ranks has it once, however a strategy divides and repeats.
    """
    held = {name: local_of(gradient) for name, gradient in gradients_of(row).items()}
    whole = job.truth.start
    numbers = torch.tensor([held[name].numel() if name in held else 0 for name in whole])
    numbers = numbers.to(job.group.device)
    dist.all_reduce(numbers)
    total = torch.zeros((), dtype=job.cfg.gpt.dtype, device=job.group.device)
    for (name, parameter), count in zip(whole.items(), numbers.tolist(), strict=True):
        if count % parameter.numel():
            raise CourseError(f"{name}: the ranks hold {count} numbers of {parameter.numel()}")
        if name in held:
            total += held[name].square().sum() / (count // parameter.numel())
    dist.all_reduce(total)
    return total.sqrt()


def found_traffic(job: Job, log: CommRecord) -> dict[str, dict[str, dict[str, float]]]:
    """{dimension: {collective: {"calls", "bytes" handed in, "by_rule": bytes to be sent}}} of a step."""
    traffic: dict[str, dict[str, dict[str, float]]] = {}
    for call in log.calls:
        of_dimension = traffic.setdefault(dimension(job, call), {})
        row = of_dimension.setdefault(call.op, {"calls": 0, "bytes": 0, "by_rule": 0.0})
        row["calls"] += 1
        row["bytes"] += call.bytes
        row["by_rule"] += call.by_rule
    return traffic


def check_traffic(name: str, row: Row, found: dict) -> None:
    """Hold calls and bytes against the formula; a row that is not even, in the sum over the ranks."""
    mine = {}
    for along, ops in found.items():
        for op, counts in ops.items():
            mine[along, op] = (counts["calls"], counts["bytes"])
    expected = {key: counts for key, counts in row.traffic.items() if counts[0]}
    if not row.even:
        mine, expected = summed(mine), summed(expected)
    if mine != expected:
        raise CourseError(f"{name}: a step calls {in_words(mine)}, expected {in_words(expected)}")


def summed(traffic: Traffic) -> Traffic:
    """Over all ranks. Collective."""
    everyone: list[Traffic] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, traffic)
    keys = {key for theirs in everyone for key in theirs}
    total = {}
    for key in sorted(keys):
        calls = sum(theirs[key][0] for theirs in everyone if key in theirs)
        total[key] = (calls, sum(theirs[key][1] for theirs in everyone if key in theirs))
    return total


def in_words(traffic: Traffic) -> str:
    parts = [f"{along} {op} {counts}" for (along, op), counts in sorted(traffic.items())]
    return ", ".join(parts) or "nothing"


def check_keeps(name: str, row: Row, job: Job, memory: Memory) -> dict[str, int]:
    """Hold what is in store after a step against the formula."""
    stored = memory.by_kind()
    expected = row.keeps or keeps_of_parts(row, job)
    for kind, size in expected.items():
        if stored[kind] != size:
            raise CourseError(f"{name}: {kind} of {stored[kind]:,} bytes, expected {size:,}")
    return {kind: stored[kind] for kind in expected}


def keeps_of_parts(row: Row, job: Job) -> dict[str, int]:
    parameters = job.bytes_of(row.part)
    gradients = job.bytes_of(row.gradient_part or row.part)
    return kinds(parameters, gradients, parameters, len(dict(row.named())))


def check_parity(name: str, row: Row, job: Job, ours: list[Step]) -> float:
    """Loss, every gradient and every parameter after each step, and the norm of the last gradient."""
    tolerance = job.cfg.tolerance
    alone = job.truth.steps
    gradients = [Step(step.loss, step.gradients) for step in ours]
    parameters = [Step(step.loss, {}, step.parameters) for step in ours]
    alone_gradients = [Step(step.loss, step.gradients) for step in alone]
    alone_parameters = [Step(step.loss, {}, step.parameters) for step in alone]
    gradient_part = row.gradient_part or row.part
    largest = max(
        assert_same_training(name, gradients, alone_gradients, tolerance, gradient_part),
        assert_same_training(name, parameters, alone_parameters, tolerance, row.part),
    )
    norm = global_norm(row, job)
    off = abs((norm - job.truth.norms[-1]).item())
    if not off <= tolerance:
        raise ParityError(f"{name}: the norm of the gradient is {norm:.6f}, off by {off:.1e}")
    return max(largest, off)


def check_wire(name: str, required: float, wire: int | None) -> None:
    """Nobody sends less than the rule says; the rule is the least."""
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (required, wire))
    if wire is not None and sum(sent for _, sent in everyone) < sum(least for least, _ in everyone):
        raise CourseError(
            f"{name}: {everyone} required and on the wire, expected is at least what is required"
        )


def check_left(name: str, row: Row, found: int) -> int:
    """Bytes that forward has left for backward."""
    if row.left_at_most is not None and found > row.left_at_most:
        raise CourseError(f"{name}: forward leaves {found:,} bytes, expected at most {row.left_at_most:,}")
    return found


def prove(name: str, build: Build, job: Job) -> dict:
    """Train, compare, and measure the last step: the numbers of this rank."""
    row = build(job)
    *unseen, warm, last = range(job.cfg.steps)
    ours = [finish_step(row, row.step(number)) for number in unseen]
    memory = Memory(Held([p for _, p in row.named()]), row.optimizer)
    with memory, Watch(memory, job):  # so that buffers which outlive a step, such as DDP's buckets, are known
        loss = row.step(warm)
    ours.append(finish_step(row, loss))
    del loss
    memory.reset_peak()
    watch = Watch(memory, job)
    dist.barrier()
    before = wire_bytes()
    with look_before_backward(memory), memory, watch:
        loss = row.step(last)
    dist.barrier()
    wire = None if before is None else wire_bytes() - before
    ours.append(finish_step(row, loss))
    traffic = found_traffic(job, watch)
    check_traffic(name, row, traffic)
    row.check()
    check_wire(name, watch.by_rule(), wire)
    return {
        "difference": check_parity(name, row, job, ours),
        "mesh": job.dimensions,
        "traffic": traffic,
        "required": watch.by_rule(),
        "wire": wire,
        "keeps": check_keeps(name, row, job, memory),
        "activations": check_left(name, row, memory.left_for_backward()),
        "at peak": memory.peak_by_kind(),
        "bubble": row.bubble,
    }


def chosen(ranks: int, only: list[str]) -> dict[str, Build]:
    rows = rows_for(ranks)
    unknown = sorted(set(only) - rows.keys())
    if unknown:
        raise InputError(f"with {ranks} ranks there is no row {unknown[0]!r}: {list(rows)}")
    return {name: build for name, build in rows.items() if not only or name in only}


def main(cfg: Config, only: list[str]) -> None:
    with process_group(timeout_s=60) as group:
        truths = Truths(group, cfg)
        results = {}
        rows = chosen(group.world_size, only)
        for name, build in rows.items():
            results[name] = prove(name, build, truths.job(name)) | {"size": truths.size}
        print_on_rank_0(f"S is {truths.size:,} bytes. Rows: {'; '.join(results)}")
        print_on_rank_0(
            "each: loss, gradients, parameters, norm as one process; calls, bytes, storage as the formula"
        )
        if not only:
            record_results("22_table", results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="All strategies in one table.")
    parser.add_argument("--only", action="append", default=[], help="a row, such as DDP; may be repeated")
    run(main, Config(), parser.parse_args().only)
