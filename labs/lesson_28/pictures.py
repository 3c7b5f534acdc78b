"""The pictures of lesson 28, drawn from what its programs computed."""

from collections.abc import Callable

from rank_tools import planner
from shared.runtime import figures


def rooflines(of_fsdp: Callable, of_experts: Callable, machine: object) -> None:
    """Communication over computing, by tokens with FSDP and by the width of an expert with EP."""
    figure, (left, right) = figures.plt.subplots(1, 2, figsize=(9.6, 3.8), sharey=True)
    counts = [2**power for power in range(9, 16)]
    widths = [2**power for power in range(9, 15)]
    for axis, sizes, ratio in ((left, counts, of_fsdp), (right, widths, of_experts)):
        for nodes, style in ((1, "-"), (2, "--"), (256, ":")):
            name = f"{nodes} node{'s' * (nodes > 1)}"
            axis.loglog(
                sizes, [ratio(size, 8 * nodes, machine) for size in sizes], linestyle=style, label=name
            )
        axis.axhline(1, color="black", linewidth=1, marker="")
    left.set(xlabel="tokens of a micro-batch on a GPU", ylabel="communication / computing", title="FSDP")
    right.set(xlabel="width of an expert", title="EP")
    right.legend()
    figures.show(
        figure,
        "Falling lines for 1, 2 and 256 nodes in each picture. FSDP's lie together and cross 1 between "
        "2,300 and 3,000 tokens. Those of EP lie far apart: they cross 1 at experts 800, 4,000 and 8,000 "
        "wide.",
    )


def deviations(groups: dict[str, list]) -> None:
    """How far the planner is from each published training, a line for each group."""
    figure, axis = figures.plt.subplots(figsize=(8.4, 3.6))
    for line, group in enumerate(groups.values()):
        off = [100 * row.deviation() for row in group]
        spread = [line + 0.3 * ((7 * number) % 11 - 5) / 5 for number in range(len(off))]
        axis.plot(off, spread, linestyle="", markersize=5)
    axis.axvspan(-10, 10, color="#eeeeee")
    axis.axvline(0, color="black", linewidth=1)
    axis.set(xlabel="% that the planner is faster, or has more memory, than was measured")
    axis.set_yticks(range(len(groups)), [f"{name} ({len(group)})" for name, group in groups.items()])
    axis.invert_yaxis()
    figures.show(
        figure,
        "A point for each published training. Most dense ones lie within 10 % of zero, a few at 20 and one "
        "near 40; those with experts spread from -46 to +196; memory lies within 10 % but for a few.",
    )


def larger_clusters(best: dict[int, planner.Plan]) -> None:
    """Seconds of a step and goodput, by the number of GPUs; `best` has a plan for each."""
    clusters = list(best)
    figure, (left, right) = figures.plt.subplots(1, 2, figsize=(9.6, 3.8))
    steps = [best[gpus].time.total for gpus in clusters]
    ideal = [steps[0] * clusters[0] / gpus for gpus in clusters]
    left.loglog(clusters, steps, label="planned, CP up to 2")
    left.loglog(clusters, ideal, linestyle="--", marker="", color="black", label="if nothing were lost")
    left.set(xlabel="GPUs", ylabel="seconds of a step", title="405B, 16M tokens in a step")
    left.legend()
    for minutes, style in ((5, "-"), (15, "--"), (30, ":")):
        shares = []
        for gpus in clusters:
            between = planner.mean_time_between(gpus)
            interval = planner.best_interval(5, between)
            shares.append(100 * planner.goodput(interval, 5, 60 * minutes, between))
        right.semilogx(clusters, shares, linestyle=style, label=f"{minutes} min for a failure")
    right.set(xlabel="GPUs", ylabel="% of the time is work", ylim=(0, 103), title="Goodput")
    right.legend(loc="lower left")
    figures.show(
        figure,
        "Left: seconds of a step fall nearly in proportion to the number of GPUs: they are 15 percent above "
        "it at 16,384 and 28 percent at 32,768. With at most CP 2 they rise at 65,536. Right: goodput falls "
        "with the number of GPUs, faster the longer a failure takes.",
    )
