"""The picture of lesson 03, drawn from what ``paper`` has traced."""

from matplotlib.patches import Patch

from shared.runtime import figures

ARROW = {"arrowstyle": "-|>", "linewidth": 2, "color": "black", "shrinkA": 0, "shrinkB": 0}
LOOKS = {
    "send": {"facecolor": "#E69F00", "edgecolor": "black", "hatch": "///"},
    "recv": {"facecolor": "#BFE3F5", "edgecolor": "black", "hatch": ".."},
}


def on_paper(charts: dict[str, list[list[dict]]], rounds: int) -> None:
    """Two message charts by name, each of the events of each rank; the second takes ``rounds``."""
    world_size = len(next(iter(charts.values())))
    figure, axes = figures.plt.subplots(1, 2, figsize=(9, 1.5 + 0.6 * world_size), sharex=True, sharey=True)
    for axis, (name, ranks) in zip(axes, charts.items(), strict=True):
        _message_chart(axis, ranks, f"on paper: {name}")
        axis.set(xlabel="rounds", xticks=range(world_size + 1))
    patches = [Patch(label=f"in {kind}", **look) for kind, look in LOOKS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=2)
    figures.show(
        figure,
        f"Two message charts of {world_size} ranks with rounds as time. Where rank 0 alone receives first, "
        f"one message is delivered in each of {world_size} rounds. Where even ranks send first, it takes "
        f"{rounds}.",
    )


def _message_chart(axis, ranks, title):
    """Draw ``ranks``, a list of events for each rank, with rounds as time."""
    for rank, events in enumerate(ranks):
        axis.axhline(rank, color="grey", linewidth=1, marker="", zorder=0)
        for event in events:
            length = event["end"] - event["begin"]
            axis.barh(rank, length, left=event["begin"], height=0.34, **LOOKS[event["what"]])
            if event["what"] == "send":
                arrow = (event["end"], event["peer"]), (event["end"] - 1, rank)
                axis.annotate("", *arrow, arrowprops=ARROW)
    axis.set(title=title, yticks=range(len(ranks)), ylim=(len(ranks) - 0.5, -0.5), ylabel="rank")
