"""Exercise 15: where is the model cut in two?"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist


def place(layers: Sequence[Callable], x: torch.Tensor, clock: Callable[[], float]) -> int:
    """Return how many of the layers, from the first on, go on device 0; the others go on device 1.

    Args:
        layers: functions of a tensor, to be called one after the other on ``x``.
        clock: the time in seconds. Here it is a simulated one, so that the check can be exact.

    A layer's first call takes longer than all later ones: memory is allocated, kernels are loaded. The
    ranks measure different times, and yet all of them must cut at the same place: what counts is the mean
    over the ranks. Each device gets at least one layer. The target: the slower device takes at most 5 %
    more than with the best cut.
    """
    # solution: begin
    for _ in range(2):  # the first round is to warm up
        seconds = []
        inputs = x
        for layer in layers:
            start = clock()
            inputs = layer(inputs)
            seconds.append(clock() - start)
    mean = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    return min(range(1, len(layers)), key=lambda cut: max(mean[:cut].sum(), mean[cut:].sum()).item())
    # solution: end
