"""The bubble of a pipeline, and how many micro-batches a rank holds at once (lesson 16)."""

from .errors import PlanError, whole

# ZB-1P, ZB-2P, V-Half: Qi et al. 2024, and the README of sail-sg/zero-bubble
SCHEDULES = ("GPipe", "1F1B", "interleaved", "ZB-1P", "ZB-2P")


def bubble(schedule: str, ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """The share of the time in which a rank waits, if all stages take equally long."""
    whole("ranks", ranks)
    whole("micro_batches", micro_batches)
    if schedule in ("GPipe", "1F1B"):
        waits = float(ranks - 1)
    elif schedule == "interleaved":
        waits = (ranks - 1) / whole("chunks", chunks)
    elif schedule == "ZB-1P":
        waits = (ranks - 1) / 3
    elif schedule == "ZB-2P":
        waits = 0.0
    else:
        raise PlanError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    return waits / (micro_batches + waits)


def at_once(schedule: str, ranks: int, index: int, micro_batches: int, chunks: int = 1) -> float:
    """Micro-batches whose activations the rank with this ``index`` holds, each of all its layers.

    With interleaved stages the first rank has 1 + (ranks - 1) / (ranks x chunks) times as many as with 1F1B
    (Korthikanti et al. 2022, section 4.2.3).
    """
    if schedule == "GPipe":
        return float(micro_batches)
    most = float(ranks - index)
    if schedule == "interleaved":
        most = (2 * (ranks - index - 1) + (chunks - 1) * ranks + 1) / chunks
    elif schedule == "ZB-2P":
        most = float(2 * ranks - 1)
    return min(float(micro_batches), most)
