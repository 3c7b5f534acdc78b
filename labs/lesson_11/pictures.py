"""The pictures of lesson 11, drawn from what its proofs recorded."""

from shared.runtime import figures


def resumed_losses(run):
    """The losses of the resumed run, whole and with each part forgotten, beside the unbroken ones."""
    unbroken, saved, resumed = run["unbroken"], run["saved"], run["resumed"]
    steps = range(1, len(unbroken) + 1)
    figure, (left, right) = figures.plt.subplots(1, 2, figsize=(10, 4.2))
    left.plot(steps, unbroken, color="black", marker="", label="unbroken")
    left.plot(steps[saved:], resumed["nothing"][saved:], linestyle="", label="resumed")
    left.axvline(saved + 0.5, color="black", linestyle=":", linewidth=1)
    left.set(xlabel="step", ylabel="loss", title="resumed = unbroken")
    left.legend(fontsize=10)
    dashes = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
    for (part, losses), dash in zip(list(resumed.items())[1:], dashes, strict=True):
        gap = [abs(a - b) for a, b in zip(losses, unbroken, strict=True)][saved:]
        right.plot(steps[saved:], gap, linestyle=dash, markersize=4, label=part)
    right.set(xlabel="step", ylabel="distance to the unbroken loss", title="with one part forgotten")
    right.legend(fontsize=10)
    figures.show(
        figure,
        "Left: loss by step; the points of the resumed run lie on the line of the unbroken one. Right: five "
        "curves of the distance to the unbroken loss, each with one part forgotten; all leave zero.",
    )
