"""The pictures of lesson 16, drawn from what its proofs recorded."""

from shared.runtime import figures

LOOKS = {"F": (0, ""), "B": (1, "//"), "I": (1, "//"), "W": (2, "..")}  # colour and hatch


def gpipe(whole, split):
    """The simulated step with the whole batch at once and with eight micro-batches."""
    figure, axes = figures.plt.subplots(2, 1, figsize=(9, 4.6), sharex=True)
    _draw(axes[0], "the whole batch at once", _lines_of(whole))
    _draw(axes[1], "GPipe: eight micro-batches", _lines_of(split))
    axes[1].set_xlabel("time, in forward passes of one stage for one micro-batch")
    figures.show(
        figure,
        "Two Gantt charts of four ranks. With the whole batch at once only one rank works at any time. "
        "With eight micro-batches the forward passes follow each other like stairs, and so do the backward "
        "passes.",
    )


def timeline(schedules):
    """Four schedules of the step, each with its bubble and a row for each rank."""
    shown = {"1F1B": 1, "Interleaved1F1B": 2, "InterleavedZeroBubble": 2, "ZBVZeroBubble": 2}
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
        "Gantt charts of four ranks. 1F1B has large gaps at the beginning and at the end. Interleaved, "
        "they are half as large. The zero-bubble schedules fill the end with W; only the steps at the "
        "beginning are left.",
    )


def memory(results):
    """What each rank saves for backward, with GPipe and 1F1B; ``results`` has one dict a rank."""
    ranks = len(results)
    few, many = (str(number) for number in (ranks + 1, 2 * ranks + 1))
    figure, axis = figures.plt.subplots()
    bars = [(name, number) for name in ("GPipe", "1F1B") for number in (few, many)]
    for index, (name, number) in enumerate(bars):
        kilobytes = [one["memory"][name][number]["saved"] / 1e3 for one in results]
        places = [rank + 0.2 * index - 0.3 for rank in range(ranks)]
        label = f"{name}, {number} micro-batches"
        axis.bar(places, kilobytes, 0.2, label=label, hatch=figures.HATCHES[index], edgecolor="black")
    axis.set(xticks=range(ranks), xlabel="rank", ylabel="kilobytes saved for backward")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figures.show(
        figure,
        "Bars for each rank. With GPipe the ranks keep much the same, the last one most, and nearly "
        "twice as much with twice the micro-batches. With 1F1B rank 0 keeps most, the last rank one "
        "micro-batch, however many there are.",
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


def _lines_of(simulation):
    """Rank, kind, stage, micro-batch, start, end of each action."""
    return [[span.device, *span.what.split(), span.start, span.end] for span in simulation.spans]
