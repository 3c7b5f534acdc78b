"""What failures cost, and how often to save.

With the mean time M between failures, a checkpoint that takes C and a restart that takes R, a run that
saves after every T of work needs on average M exp(R/M) (exp((T + C)/M) - 1) for each T (Daly 2006, equation
20). Young 1974 and Daly give the T for which this is least.
"""

import math

from .errors import PlanError

# Llama 3, section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs
GPU_HOURS_PER_FAILURE = 54 * 24 * 16384 / 419


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise PlanError(f"{name} must be a number above 0, not {value!r}")
    return value


def mean_time_between(gpus: int, gpu_hours: float | None = None) -> float:
    """Seconds between failures of ``gpus`` GPUs, of which one fails in so many hours of its own."""
    if gpu_hours is None:
        gpu_hours = GPU_HOURS_PER_FAILURE
    return _positive("hours between failures of a GPU", gpu_hours) * 3600 / _positive("gpus", gpus)


def young(save_s: float, between_s: float) -> float:
    """Seconds of work between two checkpoints: the square root of 2 C M."""
    return math.sqrt(2 * _positive("time of a checkpoint", save_s) * _positive("time", between_s))


def best_interval(save_s: float, between_s: float) -> float:
    """Daly's better approximation, in seconds of work between two checkpoints."""
    if save_s >= 2 * between_s:
        return between_s
    ratio = save_s / (2 * between_s)
    return young(save_s, between_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def goodput(interval_s: float, save_s: float, restart_s: float, between_s: float) -> float:
    """The share of the time that is work which need not be done again.

    ``restart_s`` is all from the failure until work goes on: to notice, to find the cause, to start, to load.
    """
    _positive("time between checkpoints", interval_s)
    try:
        needed = math.exp(restart_s / between_s) * math.expm1((interval_s + save_s) / between_s)
    except OverflowError:
        return 0.0
    return interval_s / (_positive("time between failures", between_s) * needed)
