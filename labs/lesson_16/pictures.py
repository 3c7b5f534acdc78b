"""The pictures of lesson 16, drawn from what its proofs recorded."""

from shared.runtime import figures

LOOKS = {"F": (0, ""), "B": (1, "//"), "I": (1, "//"), "W": (2, "..")}  # colour and hatch


def timeline(schedules):
    """Four schedules of the step, each with its bubble and a row for each rank."""
    shown = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "ZBVZeroBubble": 2}
    figure, axes = figures.plt.subplots(len(shown), 1, figsize=(9, 8.6), sharex=True)
    for axis, (name, per_rank) in zip(axes, shown.items(), strict=True):
        title = f"{name}: bubble {schedules[name]['bubble']:.1%}"
        _draw(axis, title, schedules[name]["lines"], per_rank)
    axes[-1].set_xlabel("time, in forward passes of a quarter of the model for one micro-batch")
    names = {"forward": (0, ""), "backward, or I": (1, "//"), "W": (2, "..")}
    patches = [
        figures.plt.Rectangle((0, 0), 1, 1, fc=figures.COLOURS[colour], hatch=hatch, ec="black")
        for colour, hatch in names.values()
    ]
    figure.legend(patches, names, loc="outside lower center", ncols=3)
    figures.show(
        figure,
        "Gantt charts of four ranks. With GPipe the forward passes follow each other like stairs, then the "
        "backward passes. 1F1B has gaps of the same length in all. Interleaved, they are half as large. "
        "ZBV fills the end with W; only the steps at the beginning are left.",
    )


def _draw(axis, title, lines, stages_per_rank=1):
    """A row for each rank; ``lines`` hold rank, kind, stage, micro-batch, start, end."""
    ranks = 1 + max(line[0] for line in lines)
    for rank, kind, stage, number, start, end in lines:
        _bar(axis, rank, kind, number, start, end, stages_per_rank > 1 and int(stage) >= ranks)
    axis.set(yticks=range(ranks), ylabel="rank", title=title)
    axis.invert_yaxis()
    axis.grid(visible=False)


def _bar(axis, rank, kind, number, start, end, second_stage):
    """One action; the number of the micro-batch stands in it, where there is room."""
    colour, hatch = LOOKS[kind]
    look = {"color": figures.COLOURS[colour], "hatch": hatch, "edgecolor": "black"}
    axis.barh(rank, end - start, 0.9, start, linewidth=2 if second_stage else 0.6, **look)
    if end - start > 0.9:
        ink = {"color": "white"}
        if kind != "F":
            ink = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85}}
        axis.text((start + end) / 2, rank, number, ha="center", va="center", fontsize=8, **ink)
