"""The bubble of a pipeline, and how many micro-batches a rank holds at once (lesson 16)."""

# ZB-1P, ZB-2P: Qi et al. 2024, and the README of sail-sg/zero-bubble
SCHEDULES = ("GPipe", "1F1B", "interleaved", "ZB-1P", "ZB-2P")


def bubble(schedule: str, ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """The share of the time in which a rank waits, if all stages take equally long."""
    parts = {"interleaved": chunks, "ZB-1P": 3}.get(schedule, 1)
    waits = 0.0 if schedule == "ZB-2P" else (ranks - 1) / parts
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
