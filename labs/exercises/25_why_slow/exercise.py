"""Exercise 25: why is this run slow, and because of which rank? From the traces of its GPUs."""

from statistics import median

Spans = list[tuple[float, float]]  # (start, end) in seconds


def spans(trace: dict, category: str, prefix: str = "") -> Spans:
    """The spans of a category whose names begin with ``prefix``, in the order of their start."""
    found = []
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == category and event["name"].startswith(prefix):
            found.append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    return sorted(found)


def gaps(busy: Spans, window: tuple[float, float]) -> Spans:
    """What of a window none of the spans covers. They may overlap."""
    found = []
    now, end = window
    for one_start, one_end in sorted(busy):
        if now < one_start < end:
            found.append((now, one_start))
        now = max(now, one_end)
    if now < end:
        found.append((now, end))
    return found


def seconds_in_both(ones: Spans, others: Spans) -> float:
    """How long one of ``ones`` and one of ``others`` go on together. Within a list, spans do not overlap."""
    both = 0.0
    for start, end in ones:
        for other_start, other_end in others:
            both += max(0.0, min(end, other_end) - max(start, other_start))
    return both


def diagnose(traces: list[dict]) -> tuple[str, int | None]:
    """Return the reason why a run is slow, and the rank that is to blame, None if all ranks are alike.

    Args:
        traces: for each rank what torch.profiler wrote on a GPU, as ``json.load`` returns it. Of each kernel
            there is the span on the GPU. These events matter, by category and name:

            "user_annotation"  ProfilerStep#N           a step
            "user_annotation"  enumerate(DataLoader)#…  the CPU waits for a batch
            "cuda_runtime"     cudaLaunchKernel         the CPU hands a kernel to the GPU, and goes on
            "cuda_runtime"     cudaStreamSynchronize    the CPU waits until the GPU is done: .item(), .cpu()
            "kernel"           nccl…                    a collective; it lasts from when this rank enters it
            "kernel"           any other name           the GPU computes

    The reasons:
        "data": the GPU has nothing to do because the CPU waits for a batch.
        "synchronization": the GPU has nothing to do because the CPU has waited for it, and only then goes on.
        "straggler": one rank's kernels take longer than the same kernels of the others.
        "communication": collectives take long although nobody comes late, and nothing hides them.
        "launches": the GPU has nothing to do because the CPU cannot launch its short kernels as fast as it
            computes them.

    The first three may be of one rank, and then the others wait for it in their collectives. Ranks are on
    several machines: their clocks are seconds apart, but a collective ends at one moment for all. Once in
    a while something else delays a rank. One synchronization in a step, to print the loss, does no harm.
    """
    raise NotImplementedError  # your turn: replace this line
