"""Answers to exercise 25; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

RENAMED = ("def diagnose(", "def rightly(")  # what stands below calls it

ANSWERS = [
    wrong(
        "Does not ask what the CPU did before the GPU had nothing to do.",
        "synchronization on all of 3 ranks: your reason is launches, on rank None",
        RENAMED,
        below="""
        def diagnose(traces):
            reason, rank = rightly(traces)
            if rank is None and reason == "synchronization":
                return "launches", None
            return reason, rank
        """,
    ),
    wrong(
        "Counts all seconds of the data loader, also those in which the GPU is busy.",
        "communication on all of 4 ranks: your reason is data, on rank None",
        RENAMED,
        below="""
        def diagnose(traces):
            reason, rank = rightly(traces)
            loads = spans(traces[0], "user_annotation", "enumerate(DataLoader)")
            steps = spans(traces[0], "user_annotation", "ProfilerStep")
            share = median(end - start for start, end in loads) / median(end - start for start, end in steps)
            if rank is None and share > 0.3:
                return "data", None
            return reason, rank
        """,
    ),
    wrong(
        "Looks at the first step alone, in which something else delayed a rank.",
        "data on all of 2 ranks: your reason is straggler, on rank 1",
        RENAMED,
        below="""
        def only_the_first(trace):
            step = spans(trace, "user_annotation", "ProfilerStep")[0]
            begin, end = 1e6 * step[0], 1e6 * step[1]
            events = [one for one in trace["traceEvents"] if one["ph"] == "X" and begin <= one["ts"] < end]
            return {"traceEvents": events}


        def diagnose(traces):
            return rightly([only_the_first(trace) for trace in traces])
        """,
    ),
    wrong(
        "Takes any long cudaStreamSynchronize for a fault; at the end of a step the GPU is at work.",
        "straggler on rank 2 of 4 ranks: your reason is synchronization, on rank 2",
        RENAMED,
        below="""
        def diagnose(traces):
            reason, rank = rightly(traces)
            steps = spans(traces[0], "user_annotation", "ProfilerStep")
            waiting = length(spans(traces[0], "cuda_runtime", "cudaStreamSync"))
            if reason != "data" and waiting > len(steps) * median(end - start for start, end in steps) / 4:
                return "synchronization", rank
            return reason, rank
        """,
    ),
    wrong(
        "Takes the rank whose collectives are long for the late one. It is the one that waits.",
        "data on rank 1 of 3 ranks: your rank is 2",
        RENAMED,
        below="""
        def longest(traces):
            lengths = []
            for trace in traces:
                calls = spans(trace, "kernel", "nccl")
                lengths.append(median(end - start for start, end in calls))
            if max(lengths) - min(lengths) < 0.02:
                return None
            return lengths.index(max(lengths))


        def diagnose(traces):
            return rightly(traces)[0], longest(traces)
        """,
    ),
    wrong(
        "Names the reason and leaves the rank to others.",
        "data on rank 1 of 3 ranks: your rank is None",
        RENAMED,
        below="""
        def diagnose(traces):
            return rightly(traces)[0], None
        """,
    ),
    wrong(
        "Compares times of machines whose clocks differ by seconds.",
        "data on all of 2 ranks: your rank is",
        RENAMED,
        below="""
        from collections import Counter


        def diagnose(traces):
            reason, _ = rightly(traces)
            collectives = [spans(trace, "kernel", "nccl") for trace in traces]
            last = Counter()
            for calls in zip(*collectives, strict=True):
                entered = [start for start, _ in calls]
                if max(entered) - min(entered) > 0.02:
                    last[entered.index(max(entered))] += 1
            for rank, count in last.items():
                if count > len(collectives[0]) / 2:
                    return reason, rank
            return reason, None
        """,
    ),
    wrong(
        "Returns no pair.",
        "expected a reason and a rank",
        below="def diagnose(traces): return None",
    ),
    right(
        "Finds the late rank without any clock: its collectives are the short ones. Returns a list.",
        RENAMED,
        below="""
        def late_rank(traces):
            collectives = [spans(trace, "kernel", "nccl") for trace in traces]
            steps = spans(traces[0], "user_annotation", "ProfilerStep")
            notable = median(end - start for start, end in steps) / 5
            shortest = []
            for calls in zip(*collectives, strict=True):
                lengths = [end - start for start, end in calls]
                if max(lengths) - min(lengths) > notable:
                    shortest.append(lengths.index(min(lengths)))
            for rank in range(len(traces)):
                if shortest.count(rank) > len(steps) / 2:
                    return rank
            return None


        def diagnose(traces):
            return list(rightly(traces))
        """,
    ),
    right(
        "Asks at 500 moments of each step what the GPU and the CPU do, instead of adding up spans.",
        below='''
        from bisect import bisect_right

        SAMPLES = 500


        class Busy:
            """Whether one of some spans, which do not overlap, covers a moment."""

            def __init__(self, spans):
                self.spans = spans
                self.starts = [start for start, _ in spans]

            def at(self, moment):
                place = bisect_right(self.starts, moment) - 1
                return place >= 0 and moment < self.spans[place][1]


        def parts_of_a_step(trace):
            collectives = spans(trace, "kernel", "nccl")
            known = set(collectives)
            computing = Busy([one for one in spans(trace, "kernel") if one not in known])
            communicating = Busy(collectives)
            loading = Busy(spans(trace, "user_annotation", "enumerate(DataLoader)"))
            waits = [end for _, end in spans(trace, "cuda_runtime", "cudaStreamSynchronize")]
            ends = sorted(end for _, end in spans(trace, "kernel"))
            found = {}
            for start, end in spans(trace, "user_annotation", "ProfilerStep"):
                reasons = ("data", "synchronization", "launches", "communication", "straggler")
                seen = dict.fromkeys(reasons, 0.0)
                for number in range(SAMPLES):
                    moment = start + (number + 0.5) / SAMPLES * (end - start)
                    if computing.at(moment):
                        part = "straggler"
                    elif communicating.at(moment):
                        part = "communication"
                    elif loading.at(moment):
                        part = "data"
                    else:
                        before = bisect_right(ends, moment) - 1
                        drained = ends[before] if before >= 0 else start
                        waited = bisect_right(waits, moment) - 1
                        after_a_wait = waited >= 0 and waits[waited] >= drained
                        part = "synchronization" if after_a_wait else "launches"
                    seen[part] += (end - start) / SAMPLES
                for name, value in seen.items():
                    found.setdefault(name, []).append(value)
            return {name: median(values) for name, values in found.items()}
        ''',
    ),
]
