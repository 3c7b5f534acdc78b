"""The pictures of lesson 07, drawn from what its proofs recorded."""

from shared.runtime import figures

KINDS = ["inputs", "parameters", "buffers", "outputs", "gradients of outputs", "gradients of parameters"]


def transfers(four: dict) -> None:
    """What a step of DataParallel on four devices copies from device to device, in order of time."""
    figure, axis = figures.plt.subplots(figsize=(8.6, 3.6))
    for what, source, target, _ in four["transfers"]:
        at, dash = KINDS.index(what), "--" if "gradient" in what else "-"
        arrow = {"arrowstyle": "-|>", "linestyle": dash, "linewidth": 1.8, "color": "black"}
        axis.annotate("", (at + 0.32, target), (at - 0.32, source), arrowprops=arrow)
    for at, what in enumerate(KINDS):
        axis.text(at, -0.35, f"{four['through'][what] / 1000:.0f} KB", ha="center", fontsize=11)
    names = [what.replace(" of ", "\nof ") for what in KINDS]
    axis.set(xticks=range(6), yticks=range(4), ylim=(3.4, -0.8), xlim=(-0.6, 5.6), xlabel="in order of time")
    axis.set_xticklabels(names, fontsize=11)
    axis.set_yticklabels([f"device {d}" for d in range(4)])
    axis.set_title("everything goes into or out of device 0")
    figures.show(
        figure,
        "Arrows of one step: each goes from device 0 to another of four devices, or from there to it.",
    )
