"""The pictures of lesson 06, drawn from what its proofs recorded."""

from shared.runtime import figures


def losses(trained: list[dict]) -> None:
    """The mean loss of each epoch: of one process, of all ranks together, and of the first two ranks."""
    curves = {"one process": trained[0]["alone"], "mean over ranks": trained[0]["everyone"]}
    curves |= {f"rank {rank}": one["mine"] for rank, one in enumerate(trained[:2])}
    curves = {name: [sum(steps) / len(steps) for steps in epochs] for name, epochs in curves.items()}
    looks = {
        "one process": ("-", ""),
        "mean over ranks": ("", "o"),
        "rank 0": ("--", ""),
        "rank 1": (":", ""),
    }

    figure, axis = figures.plt.subplots()
    for (name, values), colour in zip(curves.items(), ("black", *figures.COLOURS), strict=False):
        axis.plot(values, linestyle=looks[name][0], marker=looks[name][1], color=colour, label=name)
    axis.set(
        xlabel="epoch", ylabel="mean loss", yscale="log", title="the ranks' mean loss is that of one process"
    )
    axis.yaxis.set(major_locator=figures.tens_with_halves(), major_formatter="{x:g}", minor_formatter="")
    axis.legend()
    start, end = curves["one process"][0], curves["one process"][-1]
    figures.show(
        figure,
        f"Mean loss by epoch, logarithmic. The line of one process falls from {start:.1f} to {end:.2f}. The "
        "points of the mean over ranks lie on it; the lines of ranks 0 and 1 run close by.",
    )
