"""The pictures of lesson 13, drawn from what its proofs recorded."""

from shared.runtime import figures


def useful_part(simulated, daly, young):
    """``{stall: {minutes between checkpoints: useful part}}`` on the curves of these formulas, in seconds."""
    figure, axis = figures.plt.subplots()
    for (stall, points), style in zip(simulated.items(), ("-", "--"), strict=True):
        minutes = [2.5 * 2 ** (k / 8) for k in range(54)]
        parts = [daly(60 * m, stall) for m in minutes]
        axis.plot(minutes, parts, style, marker="", color="black", label=f"Daly's formula, C = {stall} s")
        axis.plot(points.keys(), points.values(), linestyle="", label="simulated")
        axis.axvline(young(stall) / 60, color="black", linestyle=":", linewidth=1)
    axis.set(xlabel="minutes between checkpoints", ylabel="useful part of the time")
    axis.set(xscale="log", ylim=(0, 1))
    axis.xaxis.set_major_locator(figures.tens_with_halves())
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(figures.plt.NullLocator())
    axis.legend(fontsize=10)
    figures.show(
        figure,
        "Useful part of the time over minutes between checkpoints, logarithmic, for saves that stop "
        "training for 148.8 and for 6.3 seconds. Simulated failures lie on Daly's two curves. Each has a "
        "flat top at Young's interval, 30 and 6 minutes, and falls off on both sides; the curve of the "
        "short stall is higher.",
    )
