"""The pictures of lesson 05, drawn on paper or from what its proofs recorded."""

from math import log2

from shared.runtime import figures

ARROW = {"arrowstyle": "-|>", "color": "#D55E00", "linewidth": 2, "mutation_scale": 13}


def ring(moments: list[tuple]) -> None:
    """Each moment of a ring all-reduce: (whose numbers each rank has in each chunk, chunks just arrived)."""
    n = len(moments[0][0])
    figure, axes = figures.plt.subplots(2, n, figsize=(2.5 * n, 5.8))
    axes[1][0].axis("off")
    for moment, (held, arrived) in enumerate(moments):
        adding = moment < n
        axis = axes[0][moment] if adding else axes[1][moment - n + 1]
        title = f"step {moment}: {'add' if adding else 'copy'}" if moment else "start"
        _draw_step(axis, held, arrived, title)
        axis.set_ylabel("rank" if moment in (0, n) else "")
        axis.set_xlabel("" if adding else "chunk")
    figures.show(
        figure,
        f"A ring of {n} ranks, step by step: squares of ranks by chunks, with arrows for the chunks that "
        f"move to the next rank. At the start each sum holds one rank's numbers. After step {n - 1} each "
        "rank has one chunk with the numbers of all. In the end all chunks have that.",
    )


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
        size = 13 if way == "gather and broadcast" else 7  # its points lie under those of the next way
        axis.plot(many, formulas[way], linestyle="-", marker="", linewidth=1, color=colour)
        counted = list(points.values())
        axis.plot(list(points), counted, linestyle="", markersize=size, color=colour, label=way)
    axis.set(xscale="log", xlabel="ranks N", ylabel="bytes sent / S", ylim=(0, 10))
    axis.set_xticks([2, 3, 4, 8, 16, 32, 64], [2, 3, 4, 8, 16, 32, 64])
    axis.minorticks_off()
    axis.set_title("what the busiest rank sends: points counted, lines by formula")
    axis.legend(fontsize=10, loc="upper right")
    figures.show(
        figure,
        "Bytes that the busiest rank sends against the number of ranks, up to 64. The ring and halving and "
        "doubling stay below 2 S; gather and broadcast and the whole-tensor ring rise by S with each rank; "
        "recursive doubling rises by S with each doubling. Counted points lie on the lines.",
    )


def measured_and_predicted(cost: dict) -> None:
    """The time of each way against the bytes of the tensor, measured and predicted by all at once."""
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
    axis.set_title("measured; dotted: predicted by all at once")
    axis.legend(fontsize=9, loc="upper left")
    figures.show(
        figure,
        "Time of three all-reduces and of torch's against their size, both logarithmic, with the "
        "predictions. They rise slowly for small sizes and steeply for large ones. At the largest size "
        "recursive doubling takes longest, measured and predicted.",
    )


def _draw_step(axis, held, arrived, title):
    """Whose numbers each rank has in each chunk, and an arrow for each chunk that has just arrived."""
    n = len(held)
    axis.imshow([[len(chunk) for chunk in row] for row in held], cmap="Blues", vmin=0, vmax=1.3 * n)
    for rank, row in enumerate(held):
        for chunk, whose in enumerate(row):
            text = "".join("ABCDEFGH"[r] for r in sorted(whose))
            colour = "white" if 2 * len(whose) > n else "black"
            axis.text(chunk, rank, text, ha="center", va="center", color=colour, fontsize=10 if n < 5 else 7)
    for rank, chunk in arrived:
        axis.add_patch(figures.plt.Rectangle((chunk - 0.5, rank - 0.5), 1, 1, fill=False, ec="#D55E00", lw=2))
        axis.annotate("", (chunk, rank - 0.18), (chunk, rank - 0.82), arrowprops=ARROW)
        if rank == 0:  # the last rank sends it out at the bottom, rank 0 gets it at the top
            axis.annotate("", (chunk, n - 0.18), (chunk, n - 0.82), arrowprops=ARROW)
    axis.set(title=title, xticks=range(n), yticks=range(n), ylim=(n - 0.1, -0.9))
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
