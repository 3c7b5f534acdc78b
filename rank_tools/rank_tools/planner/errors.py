"""What the planner says when a question cannot be answered."""


class PlanError(ValueError):
    """One sentence that names the value that is wrong."""


LARGEST = 10**12


def whole(name: str, value: object, smallest: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``smallest``, else raise ``PlanError``."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= LARGEST:
        raise PlanError(f"{name} must be a whole number of at least {smallest}, not {str(value)[:40]!r}")
    return value
