"""The pictures of lesson 03, drawn on paper or from what its proofs recorded."""

from matplotlib.patches import Patch

from shared.runtime import figures

ARROW = {"arrowstyle": "-|>", "linewidth": 2, "color": "black", "shrinkA": 0, "shrinkB": 0}
LOOKS = {
    "work": {"facecolor": "#444444", "edgecolor": "black"},
    "send": {"facecolor": "#E69F00", "edgecolor": "black", "hatch": "///"},
    "recv": {"facecolor": "#BFE3F5", "edgecolor": "black", "hatch": ".."},
}


def chain_and_ring() -> None:
    """Who sends to whom in a chain of four ranks and in a ring of four."""
    figure, (chain, ring) = figures.plt.subplots(1, 2, figsize=(9, 2.2))
    row = [(x, 0.5) for x in range(4)]
    _ranks_with_arrows(chain, row, [(0, 1), (1, 2), (2, 3)], "pipeline: activations to the next rank")
    square = [(0.8, 1.2), (2.2, 1.2), (2.2, -0.2), (0.8, -0.2)]
    _ranks_with_arrows(ring, square, [(0, 1), (1, 2), (2, 3), (3, 0)], "ring: keys and values to the right")
    figures.show(
        figure,
        "Left, four ranks in a row, with an arrow from each to the next. Right, four ranks in a square, with "
        "an arrow from each to the next and from the last back to the first.",
    )


def goes_round(handed: list[list[dict]]) -> None:
    """The message chart of a tensor that goes round, from the events of each rank in seconds."""
    world_size = len(handed)
    figure, axis = figures.plt.subplots(figsize=(8, 1.4 + 0.7 * world_size))
    _message_chart(axis, handed, "a tensor goes round", unit=1e-3)
    axis.set_xlabel("time in ms")
    _key(figure, "work", "send", "recv")
    figures.show(
        figure,
        f"A message chart of {world_size} ranks. Each rank waits in recv, works, and sends an arrow to the "
        "next line. The last arrow leads back to rank 0. At no time do two ranks work.",
    )


def on_paper(charts: dict[str, list[list[dict]]], rounds: int) -> None:
    """Two message charts by name, each of the events of each rank; the second takes ``rounds``."""
    world_size = len(next(iter(charts.values())))
    figure, axes = figures.plt.subplots(1, 2, figsize=(9, 1.5 + 0.6 * world_size), sharex=True, sharey=True)
    for axis, (name, ranks) in zip(axes, charts.items(), strict=True):
        _message_chart(axis, ranks, f"on paper: {name}", unit=1)
        axis.set(xlabel="rounds", xticks=range(world_size + 1))
    _key(figure, "send", "recv")
    figures.show(
        figure,
        f"Two message charts of {world_size} ranks with rounds as time. Where rank 0 alone receives first, "
        f"one message is delivered in each of {world_size} rounds. Where even ranks send first, it takes "
        f"{rounds}.",
    )


def _ranks_with_arrows(axis, places, pairs, title):
    """Draw numbered circles at ``places``, and an arrow for each (from, to) of ``pairs``."""
    for rank, (x, y) in enumerate(places):
        axis.text(
            x, y, str(rank), ha="center", va="center", bbox={"boxstyle": "circle,pad=0.5", "fc": "white"}
        )
    for sender, receiver in pairs:
        look = ARROW | {"shrinkA": 17, "shrinkB": 17}
        axis.annotate("", places[receiver], places[sender], arrowprops=look)
    axis.set(title=title, xlim=(-0.5, 3.5), ylim=(-0.6, 1.6))
    axis.axis("off")


def _key(figure, *kinds):
    """The legend of a figure with bars of these ``kinds``."""
    patches = [Patch(label=kind if kind == "work" else f"in {kind}", **LOOKS[kind]) for kind in kinds]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(kinds))


def _message_chart(axis, ranks, title, unit):
    """Draw ``ranks``, a list of events for each rank, with time in units of ``unit`` seconds (or rounds)."""
    start = min(event["begin"] for events in ranks for event in events)
    for rank, events in enumerate(ranks):
        axis.axhline(rank, color="grey", linewidth=1, marker="", zorder=0)
        for event in events:
            left, right = ((event[side] - start) / unit for side in ("begin", "end"))
            axis.barh(rank, right - left, left=left, height=0.34, **LOOKS[event["what"]])
    axis.set(title=title, yticks=range(len(ranks)), ylim=(len(ranks) - 0.5, -0.5), ylabel="rank")
    sent = [(rank, event) for rank, events in enumerate(ranks) for event in events if event["what"] == "send"]
    for rank, event in sent:
        (taken,) = [e for e in ranks[event["peer"]] if e["what"] == "recv" and e["peer"] == rank]
        met = max(event["begin"], taken["begin"])
        ends = ((taken["end"] - start) / unit, event["peer"]), ((met - start) / unit, rank)
        axis.annotate("", *ends, arrowprops=ARROW)
