"""The pictures of lesson 04, drawn on paper or from what its proofs recorded."""

from shared.runtime import figures

DARK = figures.plt.get_cmap("YlGnBu")  # from light to dark, so that it reads in grey as well


def on_paper(n: int) -> list[dict]:
    """{collective: what a rank holds before and after it} of each of ``n`` ranks, computed with lists."""
    held = [[f"{letter}{place}" for place in range(n)] for letter in "ABCDEFGH"[:n]]
    columns = [list(column) for column in zip(*held, strict=True)]
    sums = [f"Σ{place}" for place in range(n)]
    nothing: list[list] = [[] for _ in range(n - 1)]
    undefined: list[list] = [[None] * n for _ in range(n - 1)]
    moments = {
        "broadcast": (held, [held[0]] * n),
        "scatter": ([held[0], *nothing], [[piece] for piece in held[0]]),
        "gather": ([row[:1] for row in held], [columns[0], *nothing]),
        "all_gather": ([row[:1] for row in held], [columns[0]] * n),
        "all_to_all": (held, columns),
        "reduce": (held, [sums, *undefined]),
        "all_reduce": (held, [sums] * n),
        "reduce_scatter": (held, [[total] for total in sums]),
    }
    return [
        {name: {"before": before[rank], "after": after[rank]} for name, (before, after) in moments.items()}
        for rank in range(n)
    ]


def before_and_after(ranks: list[dict], names: list[str]) -> None:
    """What each rank holds before and after the collectives of these ``names``, two of them side by side."""
    world_size, columns = len(ranks), 2
    lines, side = -(-len(names) // columns), max(0.46 * world_size + 0.7, 2.3)
    size = (2 * columns * side, lines * side)
    figure, axes = figures.plt.subplots(lines, 2 * columns, figsize=size, squeeze=False)
    panels = iter(axes.flat)
    for name in names:
        gap = "\n" if len(name) > 14 else " "
        for moment, title in (("before", "before"), ("after", f"after{gap}{name}")):
            axis = next(panels)
            _squares(axis, [rank[name][moment] for rank in ranks], title)
            if moment == "before":
                axis.set_ylabel("rank")
    figures.show(figure, f"Eight collectives on {world_size} ranks, each before and after.")


def mispaired(paired: list[dict]) -> None:
    """The sums of weight and bias on each rank, as they should be and as they are."""
    figure, axes = figures.plt.subplots(1, 2, figsize=(6.4, 0.8 + 0.55 * len(paired)), sharey=True)
    titles = {"right": "as it should be", "got": "as it is"}
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        rows = [[int(rank[key][name]) for name in ("weight", "bias")] for rank in paired]
        figures.number_grid(axis, rows, title, max(map(max, rows)))
        axis.set(xticks=(0, 1), xticklabels=("weight", "bias"), aspect="auto")
    axes[0].set_ylabel("rank")
    figures.show(
        figure,
        "Sums of weight and bias per rank. Left, as it should be, all rows are equal. Right, as it is, every "
        "number is wrong, and those of rank 0 are swapped compared with the other ranks.",
    )


def _squares(axis, rows, title):
    """A row of squares for each rank; a "?" where a rank has a tensor, but nothing is promised about it."""
    world_size = len(rows)
    look = {"ha": "center", "va": "center"}
    for y, row in enumerate(rows):
        for x, held in enumerate(row):
            colour = "white" if held is None else DARK(_shade(held, world_size))
            hatch = "///" if held is None else None
            corner = (x - 0.5, y - 0.5)
            axis.add_patch(
                figures.plt.Rectangle(corner, 1, 1, facecolor=colour, edgecolor="black", hatch=hatch)
            )
            if held is None:
                axis.text(x, y, "?", bbox={"facecolor": "white", "linewidth": 0, "pad": 1}, **look)
            else:
                text = held if len(str(held)) < 5 else f"{held[0]}×{len(held)}"
                axis.text(x, y, text, color="white" if _shade(held, world_size) > 0.5 else "black", **look)
    end = world_size - 0.4
    axis.set(title=title, xlim=(-0.6, end), ylim=(end, -0.6), xticks=[], yticks=range(world_size))
    axis.set_aspect("equal")
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def _shade(held, world_size):
    """0.1 to 0.65 by the rank that something comes from; 0.95 for a sum over all ranks."""
    if str(held)[0] == "Σ":
        return 0.95
    rank = held - 1 if isinstance(held, int) else "abcdefgh".index(held[0].lower())
    return 0.1 + 0.55 * rank / (world_size - 1)
