"""Answers to exercise 15; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

MEAN = """
mean = torch.tensor(seconds, dtype=torch.float64)
dist.all_reduce(mean)
mean /= dist.get_world_size()
"""
CUT = "return min(range(1, len(layers)), key=lambda cut: max(mean[:cut].sum(), mean[cut:].sum()).item())"

ANSWERS = [
    wrong(
        "The ranks average their cuts instead of their times.",
        "a large head: cut after 10 of 12 layers",
        (MEAN, "mean = torch.tensor(seconds, dtype=torch.float64)"),
        (
            CUT,
            """
            own = min(range(1, len(layers)), key=lambda cut: max(mean[:cut].sum(), mean[cut:].sum()).item())
            cuts = torch.tensor(float(own))
            dist.all_reduce(cuts)
            return round(cuts.item() / dist.get_world_size())
            """,
        ),
    ),
    wrong(
        "Measures the first call.",
        "(a layer was called only once)",
        ("range(2)", "range(1)"),
    ),
    wrong(
        "Each rank trusts its own times.",
        "DDP needs the same model on each",
        (MEAN, "mean = torch.tensor(seconds, dtype=torch.float64)"),
    ),
    wrong(
        "Adds layers to device 0 until it has at least half of the time, the last one included.",
        "cut after 9 of 12 layers, the slower device takes",
        (CUT, "return min(int((mean.cumsum(0) < mean.sum() / 2).sum()) + 1, len(layers) - 1)"),
    ),
    wrong(
        "Half of the layers on each device, measured or not.",
        "cut after 6 of 12 layers, the slower device takes",
        (CUT, "return len(layers) // 2"),
    ),
    wrong(
        "Measures each layer on the first input.",
        "was called with another input than the output of the layer before",
        ("inputs = layer(inputs)", "layer(inputs)"),
    ),
    right(
        "Only rank 0 looks for the cut, from everybody's times, and tells the others.",
        (
            MEAN,
            """
            everyones = [None] * dist.get_world_size()
            dist.all_gather_object(everyones, seconds)
            chosen = [0]
            if dist.get_rank() == 0:
                total = [sum(times) for times in zip(*everyones, strict=True)]
                cuts = range(1, len(layers))
                chosen[0] = min(cuts, key=lambda cut: max(sum(total[:cut]), sum(total[cut:])))
            dist.broadcast_object_list(chosen, src=0)
            """,
        ),
        (CUT, "return chosen[0]"),
    ),
    right(
        "numpy's whole numbers are whole numbers.",
        (CUT, "return np.argmin([max(mean[:c].sum(), mean[c:].sum()) for c in range(1, len(layers))]) + 1"),
        below="import numpy as np",
    ),
]
