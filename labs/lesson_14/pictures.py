"""The pictures of lesson 14, drawn from what its proofs and its sweep recorded."""

import math
from dataclasses import dataclass

from shared.runtime import figures

from lesson_14 import workers
from lesson_14.traffic import traffic

NEVER = 290  # where a run is drawn that did not reach the target
HERE = "seed 0, run here"
MARKERS = "osD^v<>"
SENT = {
    "DDP": [1] * 8,
    "fewer bits: bf16": [1 / 2] * 8,
    "fewer numbers: top 5 %": [2 * 0.05] * 8,  # a number, and its place
    "fewer synchronizations: H = 4": [0, 0, 0, 1] * 2,
}


def ways():
    """How many bytes each way sends in each of eight steps."""
    figure, axes = figures.plt.subplots(1, 4, figsize=(9.6, 2.4), sharey=True)
    for axis, (name, heights) in zip(axes, SENT.items(), strict=True):
        axis.bar(range(1, 9), heights, color=figures.COLOURS[0], edgecolor="black")
        axis.set(title=name, xlabel="step", xticks=range(1, 9))
        axis.title.set_fontsize(9)
    axes[0].set_ylabel("bytes, as a part\nof the gradient's")
    figures.show(
        figure,
        "Four bar charts of eight steps. DDP sends a whole gradient in each step, bf16 half of one, top-k a "
        "tenth of one, and local SGD a whole one in every fourth step and nothing in between.",
    )


def reached(best, fastest, seed_0):
    """What each way reaches over the bytes that it sends, with the range of seeds."""
    ranks = workers.Config().workers
    dense = traffic("all-reduce", ranks).bytes
    points = []
    for way, described in workers.WAYS.items():
        points.append(
            _Point(
                kind=described.kind,
                label=_label_of(way),
                share=traffic(way, ranks).bytes / dense,
                ends=[100 * row.test_end for row in best[way]],
                steps=[row.test_95 for row in fastest[way]],
                here=seed_0.get(way),
            )
        )
    figures.show(
        _draw(points),
        "Two charts over the bytes that a worker sends, as a share of the all-reduce's. For each way a "
        "mark at the mean of five seeds, and a line over their range; crosses for the seed that was run "
        "here. Left, accuracy: nearly all ways end at 96 to 98 percent; without feedback it is lower, with "
        "one number in a thousand 76. Right, steps to 95 percent: 64 to 97 where about a seventh of the "
        "bytes or more is sent, 115 to 205 where less is. Without feedback there is a line without a mark, "
        "because one seed alone gets there, and with one number in a thousand no seed does.",
    )


@dataclass(frozen=True)
class _Point:
    """One way: ``ends`` are accuracies in percent, ``steps`` those to 95 %, by seed; ``here`` of seed 0."""

    kind: str
    label: str
    share: float  # of the bytes of an all-reduce
    ends: list[float]
    steps: list[int | None]
    here: int | None


def _label_of(way: str) -> str:
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


def _draw(points: list[_Point]) -> figures.plt.Figure:
    kinds = list(dict.fromkeys(point.kind for point in points))
    figure, axes = figures.plt.subplots(1, 2, figsize=(10.4, 5.4))
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
            look = {"color": figures.COLOURS[number], "markeredgecolor": "black", "markersize": 8}
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
