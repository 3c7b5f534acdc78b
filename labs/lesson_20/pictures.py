"""The picture of lesson 20: who computes which block."""

from shared.runtime import figures


def owners(in_order: dict[int, int], zigzag: dict[int, int]) -> None:
    """The blocks that are computed, in the colour of their rank; each argument has the rank of each chunk."""
    figure, axes = figures.plt.subplots(1, 2, figsize=(8, 4.4))
    _draw_owners(axes[0], in_order, "in order")
    _draw_owners(axes[1], zigzag, "zigzag")
    figures.show(
        figure,
        "Two triangles of blocks, queries downwards, keys to the right. On the left the last rank owns the "
        "two longest rows, and rank 0 the two shortest. On the right each rank owns one short and one long "
        "row.",
    )


def _draw_owners(axis: figures.plt.Axes, owner: dict[int, int], title: str) -> None:
    """A row for each chunk of queries, in the colour of its rank, whose number is in each block."""
    for query, rank in owner.items():
        for key in range(query + 1):
            look = {"facecolor": figures.COLOURS[rank], "edgecolor": "black"}
            axis.add_patch(figures.plt.Rectangle((key - 0.5, query - 0.5), 1, 1, **look))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axis.text(key, query, rank, ha="center", va="center", fontsize=9, bbox=box)
    limits = (-0.5, len(owner) - 0.5)
    axis.set(title=title, xlim=limits, ylim=limits[::-1], aspect="equal")
    axis.set(xlabel="chunk of keys", ylabel="chunk of queries")
    axis.grid(visible=False)
