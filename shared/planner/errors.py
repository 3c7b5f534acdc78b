"""What the planner says when a question cannot be answered."""


class PlanError(ValueError):
    """One sentence that names the value that is wrong."""


def whole(name: str, value: object, smallest: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``smallest``, else raise ``PlanError``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise PlanError(f"{name} must be a whole number of at least {smallest}, not {value!r}")
    return value
