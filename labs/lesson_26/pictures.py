"""The pictures of lesson 26, drawn from what its cells recorded."""

from matplotlib.patches import Rectangle

from shared.runtime import figures


def calls_of_two_ranks(calls: dict[int, list[str]], first: int, numbers: range) -> None:
    """The calls of two ranks, by number; the first that differs, `first`, is hatched."""
    figure, axis = figures.plt.subplots(figsize=(8.6, 2.2))
    for rank, made in calls.items():
        for number, call in enumerate(made):
            hatch = "//" if number == first else ""
            look = {"facecolor": "white", "edgecolor": "black", "hatch": hatch}
            axis.add_patch(Rectangle((number, -rank), 0.92, 0.7, **look))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 2}
            axis.text(number + 0.46, 0.35 - rank, call, ha="center", va="center", bbox=box)
    axis.set(xlim=(-0.1, 3.1), ylim=(-1.2, 0.9), xlabel="number of the call", ylabel="rank")
    axis.set_xticks([n + 0.46 for n in numbers], [str(n + 1) for n in numbers])
    axis.set_yticks([0.35, -0.65], ["0", "1"])
    axis.grid(visible=False)
    figures.show(
        figure,
        "Two ranks, three calls each. The first two are equal. The third, hatched, is an all-reduce of one "
        "number on rank 0 and a barrier on rank 1.",
    )
