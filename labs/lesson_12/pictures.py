"""The pictures of lesson 12, drawn from what its proofs recorded."""

from shared.runtime import figures


def skew(ranks):
    """Work and waiting of each rank, from its recorded moments in seconds."""
    figure, axes = figures.plt.subplots(3, 1, figsize=(7.2, 6.0), sharex=True)
    for axis, name in zip(axes, ranks[0], strict=True):
        start = min(rank[name]["steps"][0]["began"] for rank in ranks)
        for row, rank in enumerate(ranks):
            for step in rank[name]["steps"]:
                began, ready, done = (1e3 * (step[moment] - start) for moment in ("began", "ready", "done"))
                axis.barh(row, ready - began, left=began, color="#bbbbbb", edgecolor="black")
                axis.barh(row, done - ready, left=ready, color="white", hatch="///", edgecolor="black")
        least = f"at least {1e3 * ranks[0][name]['least_s']:.0f} ms"
        axis.set(yticks=range(len(ranks)), ylabel="rank", title=f"{name}: {least}")
        axis.invert_yaxis()
    axes[-1].set_xlabel("milliseconds since the first rank began")
    figures.show(
        figure,
        "Work and waiting of each rank in three runs. One rank slow: the last one works all the time, the "
        "others mostly wait for it. Slow in turns: in each step another one works, the others wait. "
        "In turns, meeting rarely: hardly any waiting, and the end comes much earlier.",
    )
