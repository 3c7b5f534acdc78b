"""The chart of lesson 14: what each way reaches over the bytes that it sends, with the range of seeds."""

import math
from dataclasses import dataclass

from matplotlib.figure import Figure

from shared.runtime.figures import COLOURS, plt

NEVER = 290  # where a run is drawn that did not reach the target
HERE = "seed 0, run here"
MARKERS = "osD^v<>"


@dataclass(frozen=True)
class Point:
    """One way: ``ends`` are accuracies in percent, ``steps`` those to 95 %, by seed; ``here`` of seed 0."""

    kind: str
    label: str
    share: float  # of the bytes of an all-reduce
    ends: list[float]
    steps: list[int | None]
    here: int | None


def label_of(way: str) -> str:
    """What tells it from others of its kind, such as " r4"."""
    for start, short in (
        ("PowerSGD, rank ", " r"),
        ("top ", " "),
        ("local SGD, H = ", " H"),
        ("DiLoCo, H = ", " H"),
    ):
        if way.startswith(start):
            return short + way.removeprefix(start).replace(" ", "")
    return ""


def draw(points: list[Point]) -> Figure:
    kinds = list(dict.fromkeys(point.kind for point in points))
    figure, axes = plt.subplots(1, 2, figsize=(10.4, 5.4))
    named: set[str] = set()

    def name(label: str) -> str:
        """For the legend, once."""
        known = label in named
        named.add(label)
        return "" if known else label

    for point in points:
        number = kinds.index(point.kind)
        x = point.share
        if point.kind in ("DiLoCo", "top-k, no feedback"):  # beside a way that sends as many bytes
            x *= 1.15
        steps = [float(NEVER if count is None else count) for count in point.steps]
        for axis, values in zip(axes, (point.ends, steps), strict=True):
            axis.vlines(x, min(values), max(values), color="black", linewidth=1, zorder=1)
            look = {"color": COLOURS[number], "markeredgecolor": "black", "markersize": 8}
            label = name(point.kind) if axis is axes[1] else ""
            no_mean = axis is axes[1] and 0 < point.steps.count(None) < len(point.steps)
            mean = math.nan if no_mean else sum(values) / len(values)
            axis.plot(x, mean, MARKERS[number], label=label, **look)
        if point.kind in ("PowerSGD", "top-k", "local SGD"):  # DiLoCo has the same H beside it
            place = {"xy": (x, max(steps)), "xytext": (0, 4), "textcoords": "offset points"}
            axes[1].annotate(point.label, ha="right", fontsize=9, **place)
        if point.here is not None:
            axes[1].plot(x, point.here, "x", color="black", markersize=7, label=name(HERE))
    for axis, label in zip(
        axes, ("accuracy after 256 steps, %", f"steps to 95 % (never: {NEVER})"), strict=True
    ):
        axis.set(xscale="log", xlabel="bytes sent, as a share of the all-reduce's", ylabel=label)
        axis.set_xlim(4e-3, 1.5)
    axes[1].set_ylim(40, 310)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=10)
    return figure
