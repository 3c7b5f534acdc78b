"""Check of exercise 09. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from dataclasses import dataclass
from types import ModuleType

import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

KIB = 1024
ALLOWED = 1.08  # times the best


@dataclass(frozen=True)
class Case:
    """A net on a simulated clock. Sizes in bytes, times in seconds, in the order of forward."""

    name: str
    sizes: list[int]
    compute: list[float]  # of each layer's backward
    alpha: float
    beta: float

    @property
    def ready(self) -> list[float]:
        return [sum(self.compute[layer:]) for layer in range(len(self.compute))]

    def seconds(self, buckets: list[list[int]]) -> float:
        """Our own copy of the clock: the answer's may have been edited."""
        done = 0.0
        for bucket in buckets:
            full = max(self.ready[i] for i in bucket)
            done = max(done, full) + self.alpha + self.beta * sum(self.sizes[i] for i in bucket)
        return done

    def best(self) -> float:
        """The best time of all ways to cut the row of gradients into buckets, by dynamic programming."""
        n = len(self.sizes)
        done = [0.0]  # done[k]: the earliest end of the last k layers' gradients
        for k in range(1, n + 1):
            ends = []
            for j in range(k):
                size = sum(self.sizes[n - k : n - j])
                ends.append(max(done[j], self.ready[n - k]) + self.alpha + self.beta * size)
            done.append(min(ends))
        return done[n]


CASES = (
    Case("equal layers", [256 * KIB] * 24, [2.5e-3] * 24, 2e-3, 8e-9),
    Case("a net that widens", [32 * KIB * (i + 1) for i in range(24)], [2e-3] * 24, 1e-3, 4e-9),
    Case("a large first layer", [4096 * KIB] + [256 * KIB] * 19, [4e-3] * 20, 1e-3, 8e-9),
    Case("a slow wire", [128 * KIB] * 24, [1e-3] * 24, 1e-3, 30e-9),
)


def look_at(buckets: object, case: Case) -> None:
    """Raise ``Wrong`` unless ``buckets`` holds each parameter once."""
    if not isinstance(buckets, list) or not all(isinstance(one, list) and one for one in buckets):
        raise Wrong("choose_buckets must return a list of lists of positions, none of them empty")
    taken = sorted(index for bucket in buckets for index in bucket)
    n = len(case.sizes)
    if missing := sorted(set(range(n)) - set(taken)):
        raise Wrong(f"{case.name}: parameter {missing[0]} is in no bucket, so its gradient is never averaged")
    if len(taken) != n:
        raise Wrong(f"{case.name}: {len(taken)} positions for {n} parameters")


def verify(answer: ModuleType, group: Group) -> str:
    report = []
    for case in CASES:
        buckets = answer.choose_buckets(list(case.sizes), case.ready, case.alpha, case.beta)
        look_at(buckets, case)
        chosen = [None] * group.world_size
        dist.all_gather_object(chosen, buckets)
        if chosen[0] != buckets:
            raise Wrong(f"{case.name}: rank {group.rank} chose other buckets than rank 0")
        took, target, n = case.seconds(buckets), ALLOWED * case.best(), len(case.sizes)
        if took > target:
            times = f"{case.name}: {1e3 * took:.1f} ms, the target is {1e3 * target:.1f} ms"
            if len(buckets) == 1:
                raise Wrong(f"{times}; one bucket waits for the last gradient, and nothing is hidden")
            if 0 in buckets[0]:
                raise Wrong(f"{times}; the first bucket holds parameter 0, whose gradient is ready last")
            if len(buckets) == n:
                raise Wrong(f"{times}; {n} all-reduces pay alpha {n} times")
            raise Wrong(f"{times}; {len(buckets)} buckets were sent")
        report.append(f"{1e3 * took:.1f} of {1e3 * target:.1f}")
    return f"milliseconds taken and allowed: {', '.join(report)}. Well done."


if __name__ == "__main__":
    check_exercise("09_buckets", verify)
