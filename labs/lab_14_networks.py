"""How long each way takes to 95 % on four networks: steps from the sweep's table, seconds by alpha-beta.

Run it:      python labs/lab_14_networks.py
Written by:  notebooks/14_less_communication.ipynb (edit it there)
"""

from dataclasses import dataclass

from shared.comm.record import least_bytes
from shared.lesson_14.sweep import TARGETS, Row, read
from shared.lesson_14.workers import MATRICES, SIZES, WAYS, Config, shrinks
from shared.runtime.errors import CourseError
from shared.runtime.results import record_results
from shared.runtime.run import run

NUMEL = sum(SIZES)
NEVER = 2 * Config().steps  # what a run counts that does not reach the target, when a learning rate is chosen


@dataclass(frozen=True)
class Traffic:
    """What a rank sends in a step, on average."""

    bytes: float
    messages: float  # one after the other, if each call is a ring


def traffic(way: str, ranks: int, itemsize: int = 4) -> Traffic:
    """By the formulas of lesson 05; ``lab_14_ways`` compares them with what is sent."""
    dense = least_bytes("all_reduce", itemsize * NUMEL, ranks)
    ring = 2 * (ranks - 1)
    kind, every = WAYS[way].kind, WAYS[way].every
    if kind == "bf16":
        return Traffic(dense * 2 / itemsize, ring)
    if kind == "PowerSGD":
        rank = int(way.rpartition(" ")[2])
        numbers = sum(out for out, _ in MATRICES)  # the biases
        for out, size in MATRICES:
            numbers += rank * (out + size) if shrinks((out, size), rank) else out * size
        return Traffic(dense * numbers / NUMEL, 3 * ring)
    if kind.startswith("top-k"):
        pairs = int(float(way.split()[1]) / 100 * NUMEL)
        return Traffic(least_bytes("all_gather", pairs * (itemsize + 4), ranks), 2 * (ranks - 1))
    return Traffic(dense / every, ring / every)


@dataclass(frozen=True)
class Network:
    """Between two machines; the notebook names the sources."""

    ms: float  # of a message
    gbit_per_s: float


NETWORKS = {
    "InfiniBand": Network(0.02, 3200),
    "Ethernet 100G": Network(0.03, 100),
    "Ethernet 10G": Network(0.1, 10),
    "continents": Network(45, 1),
}


@dataclass(frozen=True)
class Job:
    """INTELLECT-1, arXiv 2412.01152: 100 steps in 38 minutes, 10 billion parameters; a rank is a machine."""

    parameters: float = 10e9
    step_s: float = 22.8
    backward: float = 2 / 3  # of a step; DDP communicates meanwhile
    ranks: int = Config().workers


def step_s(way: str, network: Network, job: Job, hidden: bool) -> float:
    """Seconds of a step. Our perceptron's shares of bytes are taken for those of the job's model.

    Args:
        hidden: whether gradients travel during backward. What is sent after H steps, nothing hides.
    """
    sent = traffic(way, job.ranks)
    size = sent.bytes / NUMEL * job.parameters
    communication = sent.messages * network.ms / 1e3 + 8 * size / (network.gbit_per_s * 1e9)
    if hidden and WAYS[way].every == 1:
        communication = max(0.0, communication - job.backward * job.step_s)
    return job.step_s + communication


def steps_of(row: Row, images: str, target: float) -> int | None:
    return getattr(row, f"{images}_{100 * target:.0f}")


def settings_of(rows: list[Row], way: str) -> list[list[Row]]:
    """The rows of ``way``, those of each learning rate together."""
    settings: dict[tuple[float, float], list[Row]] = {}
    for row in rows:
        if row.way == way:
            settings.setdefault((row.lr, row.outer_lr), []).append(row)
    return list(settings.values())


def tuned(rows: list[Row], way: str, target: float) -> list[Row]:
    """The rows of the learning rates with which ``way`` is first at the target, on the images to tune by."""

    def cost(setting: list[Row]) -> tuple[float, float]:
        steps = [steps_of(row, "tune", target) or NEVER for row in setting]
        return sum(steps), -sum(row.tune_end for row in setting)

    return min(settings_of(rows, way), key=cost)


def most_accurate(rows: list[Row], way: str) -> list[Row]:
    """The rows of the learning rates with which ``way`` ends best, on the images to tune by."""
    return max(settings_of(rows, way), key=lambda setting: sum(row.tune_end for row in setting))


@dataclass(frozen=True)
class Cell:
    """The best of one kind on one network: minutes to the target by seed."""

    way: str
    minutes: list[float]

    def text(self) -> str:
        mean = sum(self.minutes) / len(self.minutes)
        return f"{mean:,.0f} ({min(self.minutes):,.0f}-{max(self.minutes):,.0f}){setting_of(self.way)}"


def setting_of(way: str) -> str:
    """What tells it from others of its kind, such as " r4"."""
    for start, short in (
        ("PowerSGD, rank ", " r"),
        ("top ", " "),
        ("local SGD, H = ", " H"),
        ("DiLoCo, H = ", " H"),
    ):
        if way.startswith(start):
            return short + way.removeprefix(start).replace(" ", "")
    return ""


def table(rows: list[Row], target: float, hidden: bool, job: Job) -> dict[str, dict[str, Cell]]:
    """{network: {kind: its best}}. The images to tune by choose H, rank and share, too.

    A way that misses the target with one seed is left out.
    """
    by_network: dict[str, dict[str, Cell]] = {}
    for name, network in NETWORKS.items():
        best: dict[str, tuple[float, Cell]] = {}
        for way in WAYS:
            chosen = tuned(rows, way, target)
            steps = [steps_of(row, "test", target) for row in chosen]
            if None in steps:
                continue
            seconds = step_s(way, network, job, hidden)
            cost = seconds * sum(steps_of(row, "tune", target) or NEVER for row in chosen)
            kind = WAYS[way].kind
            if kind not in best or cost < best[kind][0]:
                best[kind] = (cost, Cell(way, [seconds * count / 60 for count in steps if count]))
        by_network[name] = {kind: cell for kind, (_, cell) in best.items()}
    return by_network


def fastest(cells: dict[str, Cell]) -> list[str]:
    """The kind with the least mean, and those that are not slower than it with every seed."""
    best = min(cells.values(), key=lambda cell: sum(cell.minutes))

    def always_slower(cell: Cell) -> bool:
        return all(own > its for own, its in zip(cell.minutes, best.minutes, strict=True))

    return [kind for kind, cell in cells.items() if not always_slower(cell)]


def show(found: dict[str, dict[str, Cell]]) -> None:
    print(f"{'':11}" + "".join(f"{name:>20}" for name in found))
    kinds = dict.fromkeys(kind for cells in found.values() for kind in cells)
    for kind in kinds:
        print(f"{kind:11}" + "".join(f"{cells[kind].text():>20}" for cells in found.values()))


def main() -> None:
    rows = read()
    job = Job()
    verdicts = {}
    for hidden in (False, True):
        print("\ngradients travel during backward" if hidden else "nothing travels during backward")
        by_network = table(rows, TARGETS[-1], hidden, job)
        show(by_network)
        print("the fastest, and what five seeds do not tell apart from it:")
        verdicts[hidden] = {name: fastest(cells) for name, cells in by_network.items()}
        for name, kinds in verdicts[hidden].items():
            print(f"  {name}: {', '.join(kinds)}")
    for name in ("InfiniBand", "Ethernet 100G"):
        if "all-reduce" not in verdicts[True][name]:
            raise CourseError(
                f"{name}: the all-reduce was to be among the fastest, not {verdicts[True][name]}"
            )
    for name in ("Ethernet 10G", "continents"):
        if "all-reduce" in verdicts[True][name]:
            raise CourseError(f"{name}: the all-reduce was not to be among the fastest")
    record_results("lab_14_networks", {"fastest": verdicts[True]})


if __name__ == "__main__":
    run(main)
