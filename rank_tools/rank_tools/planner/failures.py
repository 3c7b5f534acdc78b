"""What failures cost, and how often to save.

With the mean time M between failures, a checkpoint that takes C and a restart that takes R, a run that saves
after every T of work needs on average M exp(R/M) (exp((T + C)/M) - 1) for each T (Daly 2006, equation 20).
Young 1974 and Daly give the T for which this is least.
"""

import math

# Llama 3, section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs
GPU_HOURS_PER_FAILURE = 54 * 24 * 16384 / 419


def mean_time_between(gpus: int, gpu_hours: float = GPU_HOURS_PER_FAILURE) -> float:
    """Seconds between failures of ``gpus`` GPUs, of which one fails in so many hours of its own."""
    return gpu_hours * 3600 / gpus


def best_interval(save_s: float, between_s: float) -> float:
    """Daly's approximation, better than Young's square root of 2 C M: seconds of work between checkpoints."""
    if save_s >= 2 * between_s:
        return between_s
    ratio = save_s / (2 * between_s)
    return math.sqrt(2 * save_s * between_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def goodput(interval_s: float, save_s: float, restart_s: float, between_s: float) -> float:
    """The share of the time that is work which need not be done again; 0 where no end is in sight.

    ``restart_s`` is all from the failure until work goes on: to notice, to find the cause, to start, to load.
    """
    try:
        needed = math.exp(restart_s / between_s) * math.expm1((interval_s + save_s) / between_s)
    except OverflowError:
        return 0.0
    return interval_s / (between_s * needed)
