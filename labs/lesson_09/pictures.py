"""The pictures of lesson 09, drawn from what its proofs recorded."""

from shared.runtime import figures


def paced_timelines(timelines: dict[str, dict]) -> None:
    """For each way to send gradients: when backward and when the wire is busy, in ms."""
    figure, axes = figures.plt.subplots(3, 1, figsize=(7.2, 4.6), sharex=True)
    for axis, (way, line) in zip(axes, timelines.items(), strict=True):
        ends = [1e3 * moment for moment in line["ready"]]
        starts = [0, *ends[:-1]]
        took = [b - a for a, b in zip(starts, ends, strict=True)]
        axis.barh(1, took, left=starts, color="#dddddd", edgecolor="black")
        for sent in line["sent"]:
            start, end = 1e3 * sent["start"], 1e3 * sent["end"]
            axis.barh(0, end - start, left=start, color=figures.COLOURS[0], edgecolor="white")
        axis.set(yticks=[0, 1], yticklabels=["wire", "backward"], title=f"{way}: {1e3 * line['done']:.0f} ms")
    axes[-1].set_xlabel("milliseconds since backward began")
    figures.show(
        figure,
        "Three timelines with a row for backward and one for the wire. Naive and flat: the wire is empty "
        "until backward ends, then busy. Overlapped: it is busy from the first layer on, and ends soon after "
        "backward.",
    )


def bucket_sizes(sweep: list[dict], layer_bytes: int) -> None:
    """Predicted and measured time of backward and communication against the size of a bucket."""
    mib = [row["size"] * layer_bytes / 2**20 for row in sweep]
    figure, axis = figures.plt.subplots()
    predicted = [1e3 * row["predicted"] for row in sweep]
    axis.plot(mib, predicted, "--", color="black", marker="", label="α–β model")
    axis.plot(mib, [1e3 * min(row["took"]) for row in sweep], linestyle="", label="measured, fastest of 3")
    axis.set(
        xscale="log", xlabel="bucket size in MiB", ylabel="backward and communication in ms", ylim=(0, None)
    )
    axis.set_xticks(mib, [f"{size:g}" for size in mib])
    axis.xaxis.set_minor_formatter("")
    axis.set_title("too small pays for starts, too large waits too long")
    axis.legend()
    figures.show(
        figure,
        "Time against bucket size. The model's line falls from small buckets to a minimum, and rises "
        "towards a single bucket. The measured points lie on it or above.",
    )
