"""The pictures of lesson 05, drawn from what its proofs recorded."""

from math import log2

from shared.runtime import figures


def bytes_sent(busiest: dict[str, dict[int, float]]) -> None:
    """What the busiest rank of each way sends, in multiples of S, by number of ranks; lines by formula."""
    figure, axis = figures.plt.subplots()
    many = range(2, 65)
    formulas = {
        "ring": [2 * (n - 1) / n for n in many],
        "gather and broadcast": [n - 1 for n in many],
        "whole-tensor ring": [n - 1 for n in many],
        "recursive doubling": [log2(n) for n in many],
        "halving and doubling": [2 * (n - 1) / n for n in many],
    }
    for colour, (way, points) in zip(figures.COLOURS, busiest.items(), strict=False):
        lies_under = way in ("ring", "gather and broadcast")  # another way, which sends as much
        axis.plot(many, formulas[way], linestyle="-", marker="", linewidth=1, color=colour)
        counted = list(points.values())
        size = 13 if lies_under else 7
        axis.plot(list(points), counted, linestyle="", markersize=size, color=colour, label=way)
    curves = {
        "gather and broadcast,\nwhole-tensor ring": (9.3, 7.6),
        "recursive doubling": (22, 3.7),
        "ring, halving and doubling": (12, 2.15),
    }
    for ways, place in curves.items():
        axis.annotate(ways, place, fontsize=10)
    axis.set(xscale="log", xlabel="ranks N", ylabel="bytes sent / S", ylim=(0, 10))
    axis.set_xticks([2, 3, 4, 8, 16, 32, 64], [2, 3, 4, 8, 16, 32, 64])
    axis.minorticks_off()
    axis.set_title("what the busiest rank sends: points counted, lines by formula")
    axis.legend(fontsize=9, loc="upper left")
    figures.show(
        figure,
        "Bytes that the busiest rank sends against the number of ranks, up to 64. The ring and halving and "
        "doubling stay below 2 S; gather and broadcast and the whole-tensor ring rise by S with each rank; "
        "recursive doubling rises by S with each doubling. Counted points lie on the lines.",
    )


def measured_and_predicted(cost: dict) -> None:
    """The time of each way against the bytes of the tensor, measured, and predicted by all at once."""
    sizes, predicted = cost["sizes"], cost["predicted"]
    figure, axis = figures.plt.subplots(figsize=(7.6, 4.6))
    for colour, marker, way in zip(figures.COLOURS, figures.MARKERS, predicted, strict=False):
        measured = [1e3 * seconds for seconds in cost["times"][way]]
        by_load = [1e3 * seconds for seconds in predicted[way]["all at once"]]
        axis.plot(sizes, measured, color=colour, marker=marker, linestyle="-", label=way)
        axis.plot(sizes, by_load, color=colour, marker="", linestyle=":")
    torchs = [1e3 * seconds for seconds in cost["times"]["torch"]]
    axis.plot(sizes, torchs, color="black", linestyle="--", label="torch on gloo")
    axis.set(xscale="log", yscale="log", xlabel="S in bytes", ylabel="time in ms")
    axis.yaxis.set(major_locator=figures.tens_with_halves(), major_formatter="{x:g}", minor_formatter="")
    axis.set_title("measured; dotted: predicted from α and β under load")
    axis.legend(fontsize=9, loc="upper left")
    figures.show(
        figure,
        "Time of three all-reduces and of torch's against their size, both logarithmic, with the "
        "predictions. They are nearly flat or noisy for small sizes and rise steeply for large ones. At the "
        "largest size recursive doubling takes longest, measured and predicted.",
    )
