"""The pictures of lesson 01, drawn from what its proofs recorded."""

from shared.runtime import figures


def nodes(sizes: list[int]) -> None:
    """A frame for each node, and in it its processes with their numbers."""
    figure, axes = figures.plt.subplots(1, len(sizes), figsize=(8.4, 1.9), width_ratios=sizes)
    rank = 0
    for node, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        for local in range(size):
            box = {"boxstyle": "round", "facecolor": "white"}
            axis.text(local, 0, f"rank {rank}\nlocal {local}", ha="center", va="center", bbox=box)
            rank += 1
        axis.set(title=f"node: group rank {node}", xlim=(-0.6, size - 0.4), ylim=(-0.6, 0.6))
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
        axis.spines[:].set_visible(True)
    counted = ", ".join(f"group rank {node} has {size} processes" for node, size in enumerate(sizes))
    figures.show(
        figure,
        f"A frame for each node: {counted}. Local ranks begin with 0 on each node, ranks are counted on.",
    )


def two_nodes(reports: list[dict]) -> None:
    """Each process of two nodes above its device; dashed, the device of ``rank % local_world_size``."""
    figure, axes = figures.plt.subplots(1, 2, figsize=(8.4, 3.4), width_ratios=(3, 4))
    for node, axis in enumerate(axes):
        here = [report for report in reports if report["node"] == node]
        for report in here:
            x, wrong = report["local_rank"], report["rank"] % report["local_world_size"]
            name = f"rank {report['rank']}\nlocal {x}"
            axis.plot([x, x], [1, 0], color="black", linewidth=1.5, marker="")
            axis.text(x, 1, name, ha="center", va="center", bbox={"boxstyle": "round", "facecolor": "white"})
            axis.text(x, 0, f"cuda:{x}", ha="center", va="center", bbox={"facecolor": "#cccccc"})
            if wrong != x:
                axis.plot([x, wrong], [0.78, 0.14], color=figures.COLOURS[1], linestyle="--", marker="")
        axis.set(
            title=f"node {'CD'[node]}, group rank {node}", xlim=(-0.5, len(here) - 0.5), ylim=(-0.45, 1.5)
        )
        axis.set(xticks=[], yticks=[0, 1], yticklabels=["device", "process"])
        axis.grid(visible=False)
        axis.spines[:].set_visible(True)
        axis.tick_params(length=0)
    axes[1].set_xlabel("dashed: where rank % 4 would send it")
    figures.show(
        figure,
        "Two frames. C, group rank 0: ranks 0 to 2 with local ranks 0 to 2, each above the device of its "
        "local rank. D, group rank 1: ranks 3 to 6 with local ranks 0 to 3, each above the device of its "
        "local rank. In D dashed lines lead from each process to another device, the one that rank % 4 "
        "names.",
    )
