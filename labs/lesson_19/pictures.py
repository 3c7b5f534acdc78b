"""The picture of lesson 19, drawn from what its proof recorded."""

from shared.runtime import figures


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
