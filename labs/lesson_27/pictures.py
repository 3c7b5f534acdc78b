"""The pictures of lesson 27, drawn from what its programs recorded."""

from matplotlib.patches import Rectangle

from shared.runtime import figures


def two_machines() -> None:
    """Two machines with a torchrun and two ranks each; one has the store."""
    figure, axis = figures.plt.subplots(figsize=(8.6, 2.6))
    for left, name, ranks in ((0, "node-a, 10.77.0.1", (0, 1)), (5, "node-b, 10.77.0.2", (2, 3))):
        axis.add_patch(Rectangle((left, 0), 4, 2.6, facecolor="white", edgecolor="black"))
        axis.text(left + 2, 2.3, name, ha="center", va="center")
        for place, text in enumerate(["torchrun", *(f"rank {rank}" for rank in ranks)]):
            axis.add_patch(Rectangle((left + 0.15 + 1.27 * place, 0.9), 1.15, 0.8, facecolor="lightgrey"))
            axis.text(left + 0.72 + 1.27 * place, 1.3, text, ha="center", va="center")
    axis.text(0.72, 0.5, "store, port 29500", va="center")
    axis.annotate("", (2.9, 0.5), (5.7, 0.9), arrowprops={"arrowstyle": "->"})
    axis.plot([4, 5], [1.3, 1.3], color="black", linewidth=3, marker="none")
    axis.text(4.5, 1.55, "network", ha="center")
    axis.set(xlim=(-0.1, 9.1), ylim=(-0.1, 2.7))
    axis.set_axis_off()
    figures.show(
        figure,
        "Two machines, node-a and node-b, joined by a network. On each there is one torchrun with two "
        "ranks: 0 and 1 on node-a, 2 and 3 on node-b. The torchrun of node-b reaches the store on node-a, "
        "port 29500.",
    )
