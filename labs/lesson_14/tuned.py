"""Which learning rates a way of lesson 14 gets: the sweep's table is asked by the images to tune by."""

from lesson_14.sweep import Row
from lesson_14.traffic import traffic
from lesson_14.workers import WAYS, Config

NEVER = 2 * Config().steps  # what a run counts that does not reach the target, when a learning rate is chosen


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


def more_steps(rows: list[Row], way: str, other: str) -> list[int]:
    """How many more steps to 95 % ``way`` needs than ``other``, seed by seed; both reach it with each."""
    pairs = zip(tuned(rows, way, 0.95), tuned(rows, other, 0.95), strict=True)
    return [one.test_95 - another.test_95 for one, another in pairs]


def end_of(rows: list[Row], way: str) -> float:
    """The best accuracy in percent, the mean over the seeds."""
    best = most_accurate(rows, way)
    return 100 * sum(row.test_end for row in best) / len(best)


def comparison(rows: list[Row]) -> list[str]:
    """The lines of a table: all ways, each tuned."""
    head = "learning rate   steps to 95 %, by seed  more than all-reduce  best accuracy"
    lines = [f"{'':21} {head}"]
    for way in WAYS:
        chosen = tuned(rows, way, 0.95)
        rate = f"{chosen[0].lr}" + (f", outer {chosen[0].outer_lr}" if chosen[0].outer_lr else "")
        steps = " ".join(f"{row.test_95 or '–':>4}" for row in chosen)
        more = ""
        if all(row.test_95 for row in chosen):
            more = " ".join(f"{count:>+4}" for count in more_steps(rows, way, "all-reduce"))
        lines.append(f"{way:21} {rate:15} {steps} {more:>25} {end_of(rows, way):11.1f} %")
    return lines


def seeds(rows: list[Row], way: str, other: str) -> tuple[int, int, int]:
    """With how many of the five seeds ``way`` needs more, as many and fewer steps than ``other``."""
    counts = more_steps(rows, way, other)
    return sum(c > 0 for c in counts), counts.count(0), sum(c < 0 for c in counts)


def check_claims(rows: list[Row]) -> None:
    """What the lesson says of the table."""
    assert seeds(rows, "bf16", "all-reduce") == (3, 1, 1)
    assert seeds(rows, "PowerSGD, rank 4", "all-reduce") == (2, 2, 1)
    assert seeds(rows, "local SGD, H = 4", "all-reduce") == (4, 0, 1)
    few_bytes = ["PowerSGD, rank 1", "top 1 %"]
    few_bytes += [f"{way}, H = {every}" for way in ("local SGD", "DiLoCo") for every in (16, 64)]
    for way in [*few_bytes, "top 10 %", "DiLoCo, H = 4"]:
        assert seeds(rows, way, "all-reduce") == (5, 0, 0)
    more = more_steps(rows, "top 10 %", "all-reduce")
    assert (min(more), max(more)) == (12, 36)
    sums = {way: sum(row.test_95 for row in tuned(rows, way, 0.95)) for way in [*few_bytes, "all-reduce"]}
    times = [sums[way] / sums["all-reduce"] for way in few_bytes]
    assert (round(min(times), 1), round(max(times), 1)) == (1.8, 3.2)
    assert round(traffic("top 10 %", 8).bytes / traffic("all-reduce", 8).bytes, 2) == 0.8
    lower = [end_of(rows, "all-reduce") - end_of(rows, way) for way in few_bytes]
    assert (round(min(lower), 1), round(max(lower), 1)) == (0.2, 1.4)
    of_diloco = [seeds(rows, f"DiLoCo, H = {every}", f"local SGD, H = {every}") for every in (4, 16)]
    assert of_diloco == [(4, 1, 0), (3, 2, 0)]
