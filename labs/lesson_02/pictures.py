"""The pictures of lesson 02, drawn from what its proofs recorded."""

from shared.runtime import figures


def who_waits(ranks: list[dict], start: float) -> None:
    """When each rank writes its address, and for whom it waits, in seconds since ``start``."""
    world_size = len(ranks)
    figure, axis = figures.plt.subplots(figsize=(7.6, 1.4 + 0.5 * world_size))
    for who, rank in enumerate(ranks):
        for wait in rank["waits"]:
            whom, length = wait["for"], wait["end"] - wait["start"]
            looks = {"color": figures.COLOURS[whom], "hatch": figures.HATCHES[whom], "edgecolor": "white"}
            axis.barh(
                who, length, left=wait["start"] - start, height=0.5, label=f"waits for rank {whom}", **looks
            )
        axis.plot(rank["writes"] - start, who, "kD", label="writes its address")
    handles, labels = axis.get_legend_handles_labels()
    legend = dict(sorted(zip(labels, handles, strict=True), key=lambda entry: entry[0]))  # one of each
    axis.legend(legend.values(), legend.keys(), fontsize=10, loc="upper left", bbox_to_anchor=(1, 1))
    axis.set(xlabel="seconds", title="who waits for whom at the store", xlim=(-0.05, None))
    axis.set(yticks=range(world_size), yticklabels=[f"rank {who}" for who in range(world_size)])
    axis.invert_yaxis()
    figures.show(
        figure,
        f"A line of time for each of {world_size} ranks. Each begins with a mark where the rank writes its "
        "address, later from rank to rank. Bars show which rank it waits for. All end where the last rank's "
        "begins.",
    )
