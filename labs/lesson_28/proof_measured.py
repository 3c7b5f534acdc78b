"""The rooflines of the lesson beside all trainings of ``published.csv``, and beside the planner.

Run it:      python labs/lesson_28/proof_measured.py
"""

from dataclasses import replace

from rank_tools.planner.hardware import Gpu, Network, gpu_named, seconds
from rank_tools.planner.published import Row, read
from rank_tools.planner.step import most_traffic, step_time
from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run

from lab_28_rooflines import Machine, all_gather, all_to_all

SHOWN = "torchtitan-docs"  # whose rows on A100s the lesson shows
GROUPS = ((8, 8), (16, 8), (128, 8), (2048, 8), (16, 1), (64, 2))  # ranks, and how many of them share a node


def machine_of(gpu: Gpu, network: Network) -> Machine:
    link, card = gpu.link * network.reached, network.card * network.reached
    return Machine(gpu.gemm * gpu.peak, link, card, network.node)


def seconds_of(op: str, handed_in: float, ranks: int, near: int, machine: Machine) -> float:
    """By the lesson's formulas, of what a rank hands in to a collective."""
    if op == "all_gather":
        return all_gather(handed_in * ranks, ranks, near, machine)
    if op == "reduce_scatter":
        return all_gather(handed_in, ranks, near, machine)
    if op == "all_reduce":
        return 2 * all_gather(handed_in, ranks, near, machine)
    return all_to_all(handed_in, ranks, near, machine)


def communication(row: Row, alone: bool = False) -> dict[str, float]:
    """{dimension of the mesh: seconds of its collectives in a step}; sends are left out.

    Args:
        alone: as if each GPU brought in all bytes through its own card, also those that its node shares.
    """
    machine = machine_of(gpu_named(row.gpu), row.network)
    found: dict[str, float] = {}
    for (dimension, op), (_, handed_in) in most_traffic(row.model, row.layout, row.batch).items():
        if op in ("send", "recv"):
            continue
        ranks, near = row.layout.group(dimension, row.network.node)
        near = max(1, min(ranks, near))
        if alone and near < ranks and op != "all_to_all":
            near = 1
        found[dimension] = found.get(dimension, 0.0) + seconds_of(op, handed_in, ranks, near, machine)
    return found


def measured(row: Row) -> float:
    """Seconds of the whole step that somebody measured; many publish another unit."""
    time = step_time(row.model, row.layout, row.batch, gpu_named(row.gpu), row.network)
    return time.total * (1 + row.deviation())


def impossible(row: Row, alone: bool = False) -> list[str]:
    """Dimensions whose collectives alone would take longer than the whole step."""
    took = measured(row)
    return [name for name, needs in communication(row, alone).items() if needs > took]


def check_measured(rows: list[Row]) -> None:
    for row in rows:
        for name in impossible(row):
            raise CourseError(
                f"{row.model.name} on {row.layout.ranks} x {row.gpu}: {name} takes "
                f"{communication(row)[name]:.2f} s of communication, the whole step took {measured(row):.2f}"
            )


def check_planner(gpu: Gpu, network: Network) -> None:
    """The same seconds as the planner's, but for what starts a collective."""
    machine = machine_of(gpu, network)
    for op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        for ranks, near in GROUPS:
            own = seconds_of(op, 1e9, ranks, near, machine)
            planned = seconds(op, ranks, near, 1, 1e9, gpu, network)
            if abs(own / planned - 1) > 1e-9:
                raise CourseError(f"{op} of {ranks} ranks: {own:.4g} s, the planner says {planned:.4g}")


def shown(rows: list[Row]) -> list[dict]:
    """The rows that the lesson prints: FSDP alone, on A100s."""
    chosen = []
    for row in rows:
        if row.source == SHOWN and row.gpu == "a100":
            eight, one = communication(row)["dp"], communication(row, alone=True)["dp"]
            chosen.append({"model": row.model.name, "took": measured(row), "eight": eight, "one": one})
    return chosen


def main() -> None:
    rows = [row for row in read()[1] if row.unit != "GiB"]
    check_measured(rows)
    print(f"{len(rows)} trainings: along no dimension do collectives take longer than the whole step took")
    check_planner(gpu_named("h100"), replace(Network(), start_inside=0.0, start_between=0.0))
    print(f"4 collectives in {len(GROUPS)} groups: the planner's seconds")
    refuted = sum(bool(impossible(row, alone=True)) for row in rows)
    print(f"if each GPU brought in all bytes through its own card, {refuted} trainings would be impossible")
    record_results("28_measured", {"shown": shown(rows), "refuted": refuted})


if __name__ == "__main__":
    run(main)
