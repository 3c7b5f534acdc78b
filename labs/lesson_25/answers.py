"""Answers to exercise 25."""

from tests.planted import Right, Wrong

ANSWERS = [
    Wrong(
        what="Counts all seconds of the data loader, also those in which the GPU is busy.",
        old="def diagnose(",
        new="def rightly(",
        told="communication on all of 4 ranks: your reason is data, on rank None",
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
    Wrong(
        what="Takes the rank whose collectives are long for the late one. It is the one that waits.",
        old="def diagnose(",
        new="def rightly(",
        told="data on rank 1 of 3 ranks: your rank is 2",
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
    Wrong(
        what="Compares times of machines whose clocks differ by seconds.",
        old="def diagnose(",
        new="def rightly(",
        told="data on all of 2 ranks: your rank is",
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
    Wrong(
        what="Takes the whole time of the loader, also that in which the GPU computes.",
        old='seconds["data"] = seconds_in_both(idle, loading)',
        new='seconds["data"] = seconds_in_both([step], loading)',
        told="communication on all of 3 ranks: your reason is data",
    ),
    Wrong(
        what="Takes all of the collectives, also what computing hides.",
        old="seconds_in_both(gaps(computing, step), collectives)",
        new="seconds_in_both([step], collectives)",
        told="data on all of 4 ranks: your reason is communication",
    ),
    Wrong(
        what="Returns no pair.",
        told="expected a reason and a rank",
        below="def diagnose(traces): return None",
    ),
    Right(
        what="Finds the late rank without any clock: its collectives are the short ones. Returns a list.",
        old="def diagnose(",
        new="def rightly(",
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
]
