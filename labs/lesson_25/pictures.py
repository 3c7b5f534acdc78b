"""The pictures of lesson 25: three slow runs, and three traces of a GPU."""

from shared.runtime import figures

LOOKS = {"data": ("#ffffff", ".."), "evaluation": ("#cccccc", "xx"), "compute": ("#0072B2", "")}
LOOKS["communication"] = ("#F0E442", "//")
NAMED = (("kernel", "", "kernel"), ("user_annotation", "enumerate(DataLoader)", "data loader"))
NAMED += (("user_annotation", "forward", "forward"), ("user_annotation", "backward", "backward"))
NAMED += (
    ("user_annotation", "Optimizer", "optimizer"),
    ("cuda_runtime", "cudaStreamSync", "waits for the GPU"),
)
COLOURS = {"kernel": "#0072B2", "data loader": "#ffffff", "forward": "#cccccc", "backward": "#999999"}
COLOURS |= {"optimizer": "#CC79A7", "waits for the GPU": "#D55E00"}
SIZES = {"small": "64 wide, 16 rows", "large": "8,192 wide, 256 rows", "loader": "256 wide, 1,024 rows"}
NOTES = {
    "small": [(1.1, -0.62, "Python launches 38 kernels in 3 ms"), (1.6, 1.62, "60 µs of work in a step")],
    "large": [
        (7.3, -0.62, "y.to(device) waits for forward"),
        (0.5, 1.62, "the step before"),
        (4.1, 1.62, "idle until forward is launched"),
    ],
    "loader": [(5.5, -0.62, "10.7 ms for a batch"), (6.5, 1.62, "idle: there is no batch")],
}


def slow_runs(slow: dict[str, dict], ranks: int) -> None:
    """What each rank did in two steps of each run, and its collectives below."""
    figure, axes = figures.plt.subplots(len(slow), figsize=(8.6, 1.5 + 1.1 * ranks * len(slow)), sharex=True)
    for axis, run in zip(axes, slow.values(), strict=True):
        for rank, spans_of in enumerate(run["timeline"]):
            for kind, (colour, hatch) in LOOKS.items():
                y = rank + (0.2 if kind == "communication" else -0.2)
                bars = [(start, end - start) for start, end in spans_of[kind]]
                look = {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.6}
                axis.broken_barh(bars, (y - 0.17, 0.34), label=kind if rank == 0 else "", **look)
        axis.set(yticks=range(ranks), ylabel="rank", ylim=(ranks - 0.5, -0.5))
        axis.set_title(f"the tree says: {run['verdict']}", fontsize=11)
    axes[-1].set_xlabel("seconds of two steps")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figures.show(
        figure,
        "Three runs, two steps each, two bars for each rank: what it does, and its collectives. The rank "
        "that the tree names is busy with that part for most of the step, and its collectives are short and "
        "late. On the others the work is short, and the first collective lasts until the late rank comes. In"
        " the third run the ranks change their parts from one step to the next.",
    )


def real_gpu(real: dict[str, dict]) -> None:
    """Two steps of each trace, Python above the GPU."""
    figure, axes = figures.plt.subplots(3, figsize=(9.2, 7.2))
    for axis, (name, notes) in zip(axes, NOTES.items(), strict=True):
        events = real[name]["traceEvents"]
        steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
        begin, end = steps[1]["ts"], steps[2]["ts"] + steps[2]["dur"]
        for category, prefix, label in NAMED:
            bars = []
            for event in events:
                inside = begin <= event["ts"] < end
                if inside and event["cat"] == category and event["name"].startswith(prefix):
                    bars.append(((event["ts"] - begin) / 1e3, event["dur"] / 1e3))
            row = (0.75, 0.5) if label == "kernel" else (-0.25, 0.5)
            edge = COLOURS[label] if label == "kernel" else "black"
            axis.broken_barh(bars, row, facecolor=COLOURS[label], edgecolor=edge, linewidth=0.5, label=label)
        for start in (step["ts"] for step in steps[1:3]):
            axis.axvline((start - begin) / 1e3, color="black", linestyle=":", linewidth=1, marker="")
        for x, y, text in notes:
            axis.text(x, y, text, va="center", fontsize=9)
        axis.set(
            yticks=(0, 1), yticklabels=("Python", "GPU"), ylim=(1.9, -0.9), xlim=(0, (end - begin) / 1e3)
        )
        axis.set_title(f"{name}: {SIZES[name]}", fontsize=11)
    axes[-1].set_xlabel("milliseconds of two steps")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=9)
    figures.show(
        figure,
        "Two steps of each run, Python's thread above the GPU. Small: Python is busy throughout, the GPU has"
        " thin lines of work. Large: kernels fill most of the step. In its first half the loader runs beside"
        " them, then the GPU is idle until forward is launched, and Python waits for forward before "
        "backward. Loader: after each long batch the GPU has thin lines of work for 4 ms.",
    )
