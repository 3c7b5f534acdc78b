"""The pictures of lesson 28, drawn from what its programs computed."""

from types import ModuleType

from rank_tools import planner
from rank_tools.planner.hardware import gpu_named
from rank_tools.planner.published import Row, mean_error
from shared.runtime import figures


def rooflines(lab: ModuleType) -> None:
    """Communication over computing, by tokens with FSDP and by the width of an expert with EP."""
    figure, (left, right) = figures.plt.subplots(1, 2, figsize=(9.6, 3.8), sharey=True)
    counts = [2**power for power in range(9, 16)]
    widths = [2**power for power in range(9, 16)]
    for axis, sizes, ratio in ((left, counts, lab.of_fsdp), (right, widths, lab.of_experts)):
        for machine, speed, width in ((lab.H100, "400 Gb/s", 1.5), (lab.SLOW, "100 Gb/s", 3.0)):
            for nodes, style in ((2, "--"), (256, ":")):
                ratios = [ratio(size, 8 * nodes, machine) for size in sizes]
                same = "1 or 2 nodes" if axis is left and machine is lab.H100 else "2 nodes"
                label = f"{same if nodes == 2 else '256 nodes'}, {speed}"
                axis.loglog(sizes, ratios, linestyle=style, lw=width, marker="", label=label)
        axis.axhline(1, color="black", linewidth=1, marker="")
    right.loglog(widths, [lab.of_experts(size, 8, lab.H100) for size in widths], marker="", label="1 node")
    left.set(xlabel="tokens of a micro-batch on a GPU", ylabel="communication / computing")
    left.set(title="FSDP, by bytes alone")
    right.set(xlabel="width of an expert", title="EP")
    left.legend(fontsize=10)
    right.legend(fontsize=10)
    figures.show(
        figure,
        "Falling lines for 1, 2 and 256 nodes at 400 and 100 Gb/s a GPU. FSDP's cross 1 between 2,300 and "
        "3,000 tokens at 400 Gb/s, at 6,000 and 12,000 at 100 Gb/s. Those of EP lie further apart: they "
        "cross 1 at experts 800, 4,000 and 8,000 wide at 400 Gb/s, and four times as wide at 100 Gb/s.",
    )


def measured_against_planned(seconds: dict[str, list], memory: dict[str, list]) -> None:
    """Each published training as a point: measured across, planned upwards; {group: rows} of each."""
    figure, axes = figures.plt.subplots(1, 2, figsize=(9.6, 4.4))
    for axis, groups, unit in zip(axes, (seconds, memory), ("seconds of a step", "GiB"), strict=True):
        for (name, rows), marker in zip(groups.items(), ("o", "x", "^"), strict=False):
            planned = [step_of(row) if unit != "GiB" else row.ours() for row in rows]
            measured = [
                one * (1 + row.deviation()) if unit != "GiB" else row.value
                for one, row in zip(planned, rows, strict=True)
            ]
            label = f"{name} ({len(rows)}), {mean_error(rows):.0%} off"
            axis.loglog(measured, planned, linestyle="", marker=marker, markersize=5, label=label)
        low, high = axis.get_xlim()
        for factor, style in ((1.0, "-"), (2.0, ":"), (0.5, ":")):
            ends = [low * factor, high * factor]
            axis.plot([low, high], ends, linestyle=style, marker="", color="black", lw=1)
        axis.set(xlabel=f"{unit}, measured", ylabel=f"{unit}, planned")
        if unit == "GiB":
            sizes = (20, 40, 80, 160)
            axis.set_xticks(sizes, map(str, sizes))
            axis.set_yticks(sizes, map(str, sizes))
            axis.minorticks_off()
        axis.legend(fontsize=11)
    figures.show(
        figure,
        "Two pictures with a line where planned equals measured, and dotted lines at twice and half. Seconds "
        "of dense models lie close to the line over three powers of ten; some with experts reach the dotted "
        "lines. Memory of benchmarks lies on the line, that of others' runs mostly a little below it.",
    )


def step_of(row: Row) -> float:
    """Seconds that the planner has for a row; many publish another unit."""
    return planner.step_time(row.model, row.layout, row.batch, gpu_named(row.gpu), row.network).total


def larger_clusters(best: dict[int, planner.Plan]) -> None:
    """Seconds of a step and goodput, by the number of GPUs; `best` has a plan for each."""
    clusters = list(best)
    figure, (left, right) = figures.plt.subplots(1, 2, figsize=(9.6, 3.8))
    steps = [best[gpus].time.total for gpus in clusters]
    ideal = [steps[0] * clusters[0] / gpus for gpus in clusters]
    left.loglog(clusters, steps, label="planned")
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
        "Left: seconds of a step fall nearly in proportion to the number of GPUs, less so at 65,536. Right: "
        "goodput falls with the number of GPUs, faster the longer a failure takes.",
    )
