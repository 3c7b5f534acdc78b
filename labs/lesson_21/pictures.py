"""The pictures of lesson 21, drawn from what its proofs recorded."""

from matplotlib.patches import Rectangle

from shared.runtime import figures


def routes(before: list, arrived: list, sorted_there: list) -> None:
    """Tokens on each rank, as (rank they come from, expert): before, after the exchange, and sorted."""
    figure, axes = figures.plt.subplots(1, 3, figsize=(12.5, 0.9 + 0.5 * len(before)))
    _tokens(axes[0], before, "sorted, where they are")
    _tokens(axes[1], arrived, "arrived, by sender")
    _tokens(axes[2], sorted_there, "sorted again, by expert")
    figures.show(
        figure,
        "Three charts of squares, a line for each rank. On the left each rank has eight tokens of one "
        "pattern, sorted by expert. In the middle each rank has the tokens of its two experts, from all "
        "ranks, in different numbers. On the right they are sorted by expert, so that patterns mix.",
    )


def highest_loads(ways: dict[str, dict]) -> None:
    """The highest load over the mean load in each step, for each way to balance."""
    figure, axis = figures.plt.subplots()
    styles = dict(zip(ways, ("-", "--", ":"), strict=True))
    for way, result in ways.items():
        highest = [max(loads) / (sum(loads) / len(loads)) for loads in result["loads"]]
        axis.plot(highest, styles[way], marker="", label=way)
    axis.set(xlabel="step", ylabel="highest load / mean load", ylim=(0.9, None))
    axis.legend()
    figures.show(
        figure,
        "Three lines over the steps. With nothing the highest load sinks a little, then rises to more than "
        "three times the mean. With the loss and with the bias it falls to nearly the mean.",
    )


def _tokens(axis: figures.plt.Axes, rows_of_rank: list[list[tuple[int, int]]], title: str) -> None:
    """A line for each rank: its tokens, hatched by the rank they come from, with their experts."""
    ranks = len(rows_of_rank)
    for rank, rows in enumerate(rows_of_rank):
        for place, (origin, expert) in enumerate(rows):
            look = {"facecolor": "white", "edgecolor": "black", "hatch": figures.HATCHES[origin]}
            axis.add_patch(Rectangle((place, -rank - 0.4), 0.9, 0.8, **look))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            axis.text(place + 0.45, -rank, str(expert), ha="center", va="center", fontsize=9, bbox=box)
    longest = max(len(rows) for rows in rows_of_rank)
    axis.set(xlim=(-0.2, longest + 0.2), ylim=(-ranks + 0.4, 0.6), title=title, xlabel="rows", ylabel="rank")
    axis.set(yticks=[-rank for rank in range(ranks)], yticklabels=range(ranks))
    axis.grid(visible=False)
