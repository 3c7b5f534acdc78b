"""The picture of lesson 22, drawn from what its table recorded."""

from shared.runtime import figures

from lesson_22 import summary

KINDS = ("parameters", "gradients", "copies of gradients", "optimizer state", "activations and the rest")
GREYS, HATCHES = ("0.15", "0.45", "0.45", "0.75", "white"), ("", "", "xx", "", "//")
ALONG = {"data": ("dp", "replicate", "shard", "dp_cp", "efsdp"), "tp": ("tp",), "pp": ("pp",), "cp": ("cp",)}
ALONG["ep"] = ("ep",)
SENT_GREYS, SENT_HATCHES = ("0.15", "white", "white", "0.6", "white"), ("", "///", "xx", "", "oo")


def stack(axis, y, parts, colours, hatches):
    left = 0.0
    for value, colour, hatch in zip(parts, colours, hatches, strict=True):
        if value > 0:
            axis.barh(y, value, 0.72, left=left, color=colour, hatch=hatch, edgecolor="black", lw=0.7)
        left += value


def peak_of(line):
    """Bytes at the peak, in S, of the rank that holds the most, by kind."""
    row = summary.fullest(line)
    return [row["at peak"][kind] / row["size"] for kind in KINDS]


def sent_of(line):
    """Bytes that the busiest rank has to send, in S, by what is divided; sums of gradients are data's."""
    row = summary.busiest(line)
    sent = summary.sent_along(row)
    sums = {
        name: row["traffic"].get(name, {}).get("all_reduce", {}).get("by_rule", 0) for name in ("cp", "ep")
    }
    sent |= {name: sent.get(name, 0) - of_gradients for name, of_gradients in sums.items()}
    sent["dp"] = sent.get("dp", 0) + sum(sums.values())
    return [sum(sent.get(name, 0) for name in names) / row["size"] for names in ALONG.values()]


def legend(axis, names, colours, hatches, where):
    looks = zip(colours, hatches, strict=True)
    handles = [figures.plt.Rectangle((0, 0), 1, 1, fc=fc, hatch=hatch, ec="black") for fc, hatch in looks]
    axis.legend(handles, list(names), loc=where, fontsize=12)


def strategies(table: dict[str, dict]) -> None:
    """What a rank holds at the peak, and what it has to send in a step, for each row of the table."""
    figure, (left, right) = figures.plt.subplots(1, 2, figsize=(10.5, 8.6), sharey=True, width_ratios=(3, 2))
    for y, one in enumerate(table.values()):
        stack(left, y, peak_of(one), GREYS, HATCHES)
        stack(right, y, sent_of(one), SENT_GREYS, SENT_HATCHES)
        right.plot([one["on the wire"]] * 2, [y - 0.42, y + 0.42], color="black", lw=2.5, marker="")
    for axis in (left, right):
        axis.axhline(len(table) - len(summary.EXPERTS) - 0.5, color="black", lw=1, ls="--")
    left.set(xlabel="held at the peak by a rank, in S", yticks=range(len(table)), yticklabels=table)
    right.set(xlabel="required of a rank in a step, in S\n(stroke: sent over gloo)")
    right.set_xlim(0, 5.8)
    left.set_ylim(len(table) - 0.4, -0.6)
    left.tick_params(axis="y", labelsize=13)
    legend(left, KINDS, GREYS, HATCHES, "center right")
    legend(right, ALONG, SENT_GREYS, SENT_HATCHES, "upper right")
    figures.show(
        figure,
        "Two bars for each strategy, in multiples of the size of the dense model. On the left what a rank "
        "holds at the peak: most in one process, less with DDP, much less with FSDP, tensor and pipeline "
        "parallelism. On the right what it has to send in a step: most with FSDP, tensor and context "
        "parallelism, hardly anything with a pipeline; strokes show that gloo sends more wherever there is a"
        " reduce-scatter. Below a dashed line four rows of a larger model with experts.",
    )
