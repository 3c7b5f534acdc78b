"""The pictures of lesson 17, drawn from what its proofs recorded."""

from matplotlib.patches import Rectangle

from shared.runtime import figures


def split_mlp(ranks):
    """Two matrices that ``ranks`` ranks split, and what they sum on the way forward and back."""
    figure, axis = figures.plt.subplots(figsize=(9.4, 3.7))
    _draw(axis, ranks, 0.0, 2.0, 1.2, None, "x")
    axis.text(2.5, 0, "·", ha="center", va="center", fontsize=18)
    _draw(axis, ranks, 3.0, 4.0, 2.0, "columns", "W by columns")
    axis.text(7.6, 0, "→", ha="center", va="center", fontsize=18)
    _draw(axis, ranks, 8.2, 4.0, 1.2, "columns", "gelu(x W)")
    axis.text(12.7, 0, "·", ha="center", va="center", fontsize=18)
    _draw(axis, ranks, 13.2, 2.0, 4.0, "rows", "V by rows")
    axis.text(16.1, 0, "→ sum →", ha="center", va="center", fontsize=11)
    _draw(axis, ranks, 17.2, 2.0, 1.2, None, "result")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 3}
    for y, way, start, end, at_f, at_g in (
        (-2.9, "forward", 0.0, 19.2, "nothing", "sum over ranks"),
        (-3.8, "backward", 19.2, 0.0, "sum over ranks", "nothing"),
    ):
        axis.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "->", "lw": 1.3})
        axis.text(9.6, y, way, ha="center", va="center", bbox=box)
        axis.text(2.5, y, f"f: {at_f}", ha="center", va="center", bbox=box)
        axis.text(16.2, y, f"g: {at_g}", ha="center", va="center", bbox=box)
    axis.set(xlim=(-0.3, 19.5), ylim=(-4.3, 2.7), aspect="equal")
    axis.axis("off")
    figures.show(
        figure,
        "An input that all ranks have is multiplied with a matrix cut by columns. The hidden activations are "
        "cut by columns in the same way. The second matrix is cut by rows. A sum over the ranks gives a "
        "result that all ranks have. Two arrows below: forward the ranks sum at g, behind the second "
        "matrix; backward at f, before the first one.",
    )


def _draw(axis, ranks, left, width, height, cut, title):
    """A matrix that is cut by "columns", by "rows", or not at all (None)."""
    parts = 1 if cut is None else ranks
    for rank in range(parts):
        wide = width / parts if cut == "columns" else width
        high = height / parts if cut == "rows" else height
        x = left + rank * wide if cut == "columns" else left
        y = height / 2 - (rank + 1) * high if cut == "rows" else -height / 2
        look = {"facecolor": "white", "edgecolor": "black", "lw": 1.3}
        axis.add_patch(Rectangle((x, y), wide, high, hatch=figures.HATCHES[rank] if cut else "", **look))
        label = "all" if cut is None else str(rank)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axis.text(x + wide / 2, y + high / 2, label, ha="center", va="center", bbox=box, fontsize=10)
    axis.text(left + width / 2, height / 2 + 0.3, title, ha="center", fontsize=11)
