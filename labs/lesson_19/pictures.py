"""The pictures of lesson 19, drawn from what its proofs recorded."""

from shared.runtime import figures


def life_of_units(units: list[str], kinds: tuple[str, ...], moments: list[dict]) -> None:
    """Bytes of each kind that each unit holds, over the moments of a step."""
    figure, axes = figures.plt.subplots(len(units), sharex=True, sharey=True, figsize=(8.6, 5.2))
    colours = ("#888888", "#cccccc", *figures.COLOURS[:2])
    places = range(len(moments))
    for axis, unit in zip(axes, units, strict=True):
        bottom = [0.0] * len(moments)
        for kind, hatch, colour in zip(kinds, ("", "xx", "", "//"), colours, strict=True):
            height = [moment[unit][kind] / 1024 for moment in moments]
            axis.bar(
                places,
                height,
                1,
                bottom,
                color=colour,
                hatch=hatch,
                edgecolor="black",
                linewidth=0.5,
                label=kind,
            )
            bottom = [a + b for a, b in zip(bottom, height, strict=True)]
        axis.axvline(3 * len(units) - 0.5, color="black", linewidth=1)
        axis.set_title(unit, fontsize=11, loc="left")
        axis.set(xticks=[], ylabel="KiB")
    axes[-1].set_xticks([3 * len(units) / 2 - 0.5, 5 * len(units) - 0.5], ["forward", "backward"])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=10)
    figures.show(
        figure,
        "A lane for each of four units, over the moments of a step. Each always holds its shard. In the "
        "forward pass one after the other is whole for a moment; in the backward pass in reverse order, with "
        "a whole gradient, of which a shard stays.",
    )


def peaks_of_units(rows: list[dict], ddp: dict[str, dict], size: int) -> None:
    """Peaks of memory by units, over `size`, the bytes of all parameters, and the lines of DDP."""
    figure, axis = figures.plt.subplots(figsize=(8.6, 4.4))
    places = [place + place // 2 * 0.5 for place in range(6)]
    whole, peak = ([row[key] / size for row in rows] for key in ("unsharded", "peak"))
    axis.bar(places, peak, color="white", edgecolor="black", hatch="//", label="peak of all tensors")
    axis.bar(
        places, whole, 0.4, color=figures.COLOURS[0], edgecolor="black", label="whole parameters, at most"
    )
    for (name, row), dash in zip(ddp.items(), ("--", ":"), strict=True):
        axis.axhline(row["peak"] / size, color="black", linestyle=dash, label=f"{name}: peak")
    for x, y, row in zip(places, peak, rows, strict=True):
        text = f"{row['all_gather']} + {row['reduce_scatter']}\n{row['by_rule'] / size:.1f} S"
        look = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axis.text(x, y + 0.06, text, ha="center", va="bottom", fontsize=10, bbox=look)
    axis.set_xticks(
        places, ["one unit\nreshard", "keep", "per block\nreshard", "keep", "per layer\nreshard", "keep"]
    )
    title = "above the bars: all-gathers + reduce-scatters, bytes sent by rule"
    axis.set(ylabel="bytes / S", ylim=(0, 7.2), title=title)
    axis.legend(fontsize=9, ncols=2, loc="upper center")
    figures.show(
        figure,
        "Six bars: the peak of memory for one unit, one per block and one per layer, each with parameters "
        "freed after forward or kept. Smaller units are lower and have more collectives. Where there are "
        "several, freeing them lowers the peak and adds all-gathers. Two lines for DDP lie above all bars.",
    )
