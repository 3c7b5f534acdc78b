"""Exercise 25: why is this run slow, and because of which rank? From the traces of its GPUs."""

from statistics import median

Spans = list[tuple[float, float]]  # (start, end) in seconds
REASONS = ("data", "synchronization", "straggler", "communication", "launches")


def spans(trace: dict, category: str, prefix: str = "") -> Spans:
    """The spans of a category whose names begin with ``prefix``, in the order of their start."""
    result = []
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == category and event["name"].startswith(prefix):
            result.append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    return sorted(result)


def gaps(busy: Spans, window: tuple[float, float]) -> Spans:
    """What of a window none of the spans covers. They may overlap."""
    result = []
    now, window_end = window
    for start, end in sorted(busy):
        if now < start < window_end:
            result.append((now, start))
        now = max(now, end)
    if now < window_end:
        result.append((now, window_end))
    return result


def length(spans_of_one_kind: Spans) -> float:
    """The seconds of all spans together."""
    return sum(end - start for start, end in spans_of_one_kind)


def seconds_in_both(left: Spans, right: Spans) -> float:
    """How long spans of ``left`` and ``right`` go on together. Within a list, they do not overlap."""
    both = 0.0
    for start, end in left:
        for other_start, other_end in right:
            both += max(0.0, min(end, other_end) - max(start, other_start))
    return both


def entered(traces: list[dict]) -> list[list[float]]:
    """For each collective of the run, when each rank enters it, by rank 0's clock.

    A collective ends at one moment for all ranks: that sets the clocks.
    """
    collectives = [spans(trace, "kernel", "nccl") for trace in traces]
    shifts = []
    for own in collectives:
        shifts.append(median(a[1] - b[1] for a, b in zip(collectives[0], own, strict=True)))
    moments = []
    for calls in zip(*collectives, strict=True):
        moments.append([call[0] + shift for call, shift in zip(calls, shifts, strict=True)])
    return moments


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
    rank = late_rank(traces)
    parts = [parts_of_a_step(trace) for trace in traces]
    if rank is None:
        shares = {name: median(part[name] for part in parts) for name in REASONS if name != "straggler"}
        return max(shares, key=shares.__getitem__), None
    others = [part for number, part in enumerate(parts) if number != rank]
    more = {}
    for name in ("data", "synchronization", "straggler"):
        more[name] = parts[rank][name] - median(part[name] for part in others)
    return max(more, key=more.__getitem__), rank


# Your part begins here.


def late_rank(traces: list[dict]) -> int | None:
    """The rank that enters collectives last in most steps, and notably late; None if there is no such rank.

    Compare with the length of a step: what is a fifth of it is notable.
    """
    # solution: begin
    steps = spans(traces[0], "user_annotation", "ProfilerStep")
    notable = median(end - start for start, end in steps) / 5
    last = []
    for moments in entered(traces):
        if max(moments) - min(moments) > notable:
            last.append(moments.index(max(moments)))
    for rank in range(len(traces)):
        if 2 * last.count(rank) > len(steps):
            return rank
    return None
    # solution: end


def parts_of_a_step(trace: dict) -> dict[str, float]:
    """{reason: seconds of a step}, the median of all steps: one delay does not count.

    For "straggler" it is the time in which the GPU computes, for "communication" that in which it only
    communicates. The other three divide the time in which it is idle.
    """
    kernels = spans(trace, "kernel")
    collectives = spans(trace, "kernel", "nccl")
    computing = [kernel for kernel in kernels if kernel not in collectives]
    loading = spans(trace, "user_annotation", "enumerate(DataLoader)")
    waiting = spans(trace, "cuda_runtime", "cudaStreamSynchronize")
    steps = []
    for step in spans(trace, "user_annotation", "ProfilerStep"):
        idle = gaps(kernels, step)
        seconds = {}
        # solution: begin
        after_a_wait = [gap for gap in idle if any(gap[0] <= end <= gap[1] for _, end in waiting)]
        seconds["data"] = seconds_in_both(idle, loading)
        seconds["synchronization"] = length(after_a_wait) - seconds_in_both(after_a_wait, loading)
        seconds["launches"] = length(idle) - seconds["data"] - seconds["synchronization"]
        seconds["communication"] = seconds_in_both(gaps(computing, step), collectives)
        seconds["straggler"] = seconds_in_both([step], computing)
        # solution: end
        steps.append(seconds)
    return {name: median(seconds[name] for seconds in steps) for name in REASONS}
