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
    # solution: begin
    rank = late_rank(traces)
    parts = [parts_of_a_step(trace) for trace in traces]
    if rank is None:
        shares = {name: median(one[name] for one in parts) for name in parts[0] if name != "straggler"}
        return max(shares, key=shares.__getitem__), None
    others = [one for number, one in enumerate(parts) if number != rank]
    more = {}
    for name in ("data", "synchronization", "straggler"):
        more[name] = parts[rank][name] - median(one[name] for one in others)
    return max(more, key=more.__getitem__), rank


def late_rank(traces: list[dict]) -> int | None:
    """Who enters collectives last in most steps, and notably late. Their ends set the clocks."""
    collectives = [spans(trace, "kernel", "nccl") for trace in traces]
    shifts = []
    for own in collectives:
        shifts.append(median(a[1] - b[1] for a, b in zip(collectives[0], own, strict=True)))
    steps = spans(traces[0], "user_annotation", "ProfilerStep")
    notable = median(end - start for start, end in steps) / 5
    last = []
    for calls in zip(*collectives, strict=True):
        entered = [call[0] + shift for call, shift in zip(calls, shifts, strict=True)]
        if max(entered) - min(entered) > notable:
            last.append(entered.index(max(entered)))
    for rank in range(len(traces)):
        if 2 * last.count(rank) > len(steps):
            return rank
    return None


def parts_of_a_step(trace: dict) -> dict[str, float]:
    """Seconds by reason, the median of all steps: one delay does not count."""
    kernels = spans(trace, "kernel")
    collectives = spans(trace, "kernel", "nccl")
    computing = [one for one in kernels if one not in collectives]
    loading = spans(trace, "user_annotation", "enumerate(DataLoader)")
    waiting = spans(trace, "cuda_runtime", "cudaStreamSynchronize")
    found: dict[str, list[float]] = {}
    for step in spans(trace, "user_annotation", "ProfilerStep"):
        idle = gaps(kernels, step)
        after_a_wait = [gap for gap in idle if any(gap[0] <= end <= gap[1] for _, end in waiting)]
        data = seconds_in_both(idle, loading)
        synchronization = length(after_a_wait) - seconds_in_both(after_a_wait, loading)
        seconds = {
            "data": data,
            "synchronization": synchronization,
            "launches": length(idle) - data - synchronization,
            "communication": seconds_in_both(gaps(computing, step), collectives),
            "straggler": seconds_in_both([step], computing),
        }
        for name, value in seconds.items():
            found.setdefault(name, []).append(value)
    return {name: median(values) for name, values in found.items()}


def length(ones: Spans) -> float:
    return sum(end - start for start, end in ones)
    # solution: end
