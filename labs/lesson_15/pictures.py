"""The pictures of lesson 15, drawn from what its proofs recorded."""

from shared.runtime import figures


def idle_devices(lines):
    """A Gantt chart for each cut: ``{name: [(device, what, start, end)]}``, in seconds."""
    figure, axes = figures.plt.subplots(len(lines), 1, figsize=(8.2, 6.2), sharex=True)
    looks = {"forward": (figures.COLOURS[0], ""), "backward": (figures.COLOURS[1], "//")}
    for axis, (name, spans) in zip(axes, lines.items(), strict=True):
        blocks = {}  # a device's layers with one micro-batch
        for device, what, start, end in spans:
            first, last = blocks.get((device, what), (start, end))
            blocks[device, what] = (min(first, start), max(last, end))
        numbered = len(blocks) > 4
        for (device, what), (start, end) in blocks.items():
            way, number = what.split()
            colour, hatch = looks[way]
            look = {"color": colour, "hatch": hatch, "edgecolor": "black"}
            axis.barh(device, 1e3 * (end - start), left=1e3 * start, **look)
            if numbered:
                at = 1e3 * (start + end) / 2
                box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
                axis.text(at, device, number, ha="center", va="center", fontsize=10, bbox=box)
        total = max(end for _, end in blocks.values())
        busy = [0.0, 0.0]
        for (device, _), (start, end) in blocks.items():
            busy[device] += end - start
        names = [f"device {d}\nidle {1 - time / total:.0%}" for d, time in enumerate(busy)]
        axis.set(yticks=[0, 1], yticklabels=names, title=name)
        axis.invert_yaxis()
    handles = [figures.plt.Rectangle((0, 0), 1, 1, fc=c, hatch=h, ec="black") for c, h in looks.values()]
    figure.legend(handles, looks, loc="outside lower center", ncols=2)
    axes[-1].set_xlabel("milliseconds of the simulation")
    figures.show(
        figure,
        "Three Gantt charts of one step, with a row for each of two devices. With the whole batch one of "
        "the rows is always empty, whatever the cut. With four numbered micro-batches device 0 is at "
        "number 1 while device 1 is at number 0, and the step is shorter.",
    )
