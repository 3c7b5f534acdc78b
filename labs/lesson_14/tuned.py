"""Which learning rates a way of lesson 14 gets: the sweep's table is asked by the images to tune by."""

from lesson_14.sweep import Row
from lesson_14.workers import Config

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
