"""The picture of lesson 04."""

from shared.runtime import figures

DARK = figures.plt.get_cmap("YlGnBu")  # from light to dark, so that it reads in grey as well


def before_and_after(ranks: list[dict], names: list[str]) -> None:
    """What each rank holds before and after the collectives of these ``names``, two of them side by side."""
    world_size, columns = len(ranks), 2
    lines, side = -(-len(names) // columns), max(0.46 * world_size + 0.7, 2.3)
    size = (2 * columns * side, lines * side)
    figure, axes = figures.plt.subplots(lines, 2 * columns, figsize=size, squeeze=False)
    panels = iter(axes.flat)
    for name in names:
        for moment, title in (("before", "before"), ("after", f"after {name}")):
            axis = next(panels)
            _squares(axis, [rank[name][moment] for rank in ranks], title)
            if moment == "before":
                axis.set_ylabel("rank")
    figures.show(figure, f"Eight collectives on {world_size} ranks, each before and after.")


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
                axis.text(x, y, held, color="white" if _shade(held, world_size) > 0.5 else "black", **look)
    end = world_size - 0.4
    axis.set(title=title, xlim=(-0.6, end), ylim=(end, -0.6), xticks=[], yticks=range(world_size))
    axis.set_aspect("equal")
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def _shade(held, world_size):
    """0.1 to 0.65 by the rank that something comes from; 0.95 for a sum over all ranks."""
    if held[0] == "Σ":
        return 0.95
    return 0.1 + 0.55 * "ABCDEFGH".index(held[0]) / (world_size - 1)
