# accepted: samples each step at a thousand moments instead of adding up spans
"""Asks at many moments of a step what the GPU and the CPU do."""

from bisect import bisect_right
from pathlib import Path
from statistics import median

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")
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
    collectives = solution.spans(trace, "kernel", "nccl")
    known = set(collectives)
    computing = Busy([one for one in solution.spans(trace, "kernel") if one not in known])
    communicating = Busy(collectives)
    loading = Busy(solution.spans(trace, "user_annotation", "enumerate(DataLoader)"))
    waits = [end for _, end in solution.spans(trace, "cuda_runtime", "cudaStreamSynchronize")]
    kernels = sorted(solution.spans(trace, "kernel"))
    ends = sorted(end for _, end in kernels)
    found = {}
    for start, end in solution.spans(trace, "user_annotation", "ProfilerStep"):
        seen = dict.fromkeys(("data", "synchronization", "launches", "communication", "straggler"), 0.0)
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


solution.parts_of_a_step = parts_of_a_step


def diagnose(traces):
    return solution.diagnose(traces)
