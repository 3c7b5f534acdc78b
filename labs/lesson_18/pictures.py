"""The pictures of lesson 18, drawn from what its proofs recorded."""

from shared.runtime import figures

WAYS = ("DDP", "ZeRO-1", "ZeRO-2")
KINDS = ("parameters", "gradients", "state")


def sent(by_hand, world_size):
    """What a rank sends in a step of one backward, as a multiple of S, for each number of ranks."""
    ranks = range(1, world_size + 1)
    S = by_hand[0]["ZeRO-1, 1, 1"]["size"]
    figure, axis = figures.plt.subplots(figsize=(7.6, 4.2))
    for halves, dash, name in ((3, "--", "torch's ZeRO-1"), (2, "-", "DDP and ZeRO-1")):
        formula = [halves * (n - 1) / n for n in ranks]
        label = f"{halves}(N−1)/N · S, by rule: {name}"
        axis.plot(ranks, formula, dash, color="black", marker="", label=label)
    known = by_hand[0][f"ZeRO-1, 1, {world_size}"]["wire"] is not None
    for way, marker in (("torch's ZeRO-1", "s"), ("ZeRO-1", "o"), ("ZeRO-1 on rings", "^")) if known else ():
        size = 12 if marker == "s" else 6
        measured = [(by_hand[0][f"{way}, 1, {n}"]["wire"] or 0) / S for n in ranks]
        label = f"{way}, sent over gloo"
        axis.plot(ranks, measured, marker, ms=size, fillstyle="none", mew=2, label=label)
    axis.set(xlabel="ranks N", ylabel="sent per step and rank / S", xticks=ranks, ylim=(0, 3.9))
    axis.set_title("ZeRO-1 on rings sends what DDP sends; over gloo more")
    axis.legend(fontsize=9, loc="upper left")
    figures.show(
        figure,
        "Bytes sent per step against the number of ranks. Two curves that flatten, the lower one at two "
        "thirds of the upper. What gloo sent for torch's class and for ZeRO-1 lies on the upper curve, "
        "ZeRO-1 on rings on the lower.",
    )


def memory(fullest, ranks, KB):
    """Memory by number of ranks: ``fullest(way, n, kind)`` in KB, and ``KB`` of the parameters."""
    formula = {
        "DDP": lambda n: 4 * KB,
        "ZeRO-1": lambda n: 2 * KB + 2 * KB / n,
        "ZeRO-2": lambda n: KB + 3 * KB / n,
    }
    figure, axis = figures.plt.subplots(figsize=(8.2, 4.4))
    colours = ("white", figures.COLOURS[1], figures.COLOURS[0])
    looks = dict(zip(KINDS, zip(colours, ("", "//", ".."), strict=True), strict=True))
    for way, shift in zip(WAYS, (-0.27, 0, 0.27), strict=True):
        at, bottom = [n + shift for n in ranks], [0.0] * len(ranks)
        for kind, (colour, hatch) in looks.items():
            height = [fullest(way, n, kind) for n in ranks]
            label = kind if way == WAYS[0] else None
            axis.bar(at, height, 0.24, bottom, color=colour, hatch=hatch, edgecolor="black", label=label)
            bottom = [a + b for a, b in zip(bottom, height, strict=True)]
        mark = {"marker": "D", "markerfacecolor": "white", "linestyle": ":", "linewidth": 1.2}
        label = "formula" if way == WAYS[0] else None
        axis.plot(at, [formula[way](n) for n in ranks], color="black", label=label, **mark)
        axis.text(at[-1], bottom[-1] + 0.15 * KB, way, ha="center", fontsize=10)
    axis.set(xlabel="ranks N", ylabel="KB on a rank", xticks=ranks, ylim=(0, 5 * KB))
    axis.set_title("Memory of DDP, ZeRO-1 and ZeRO-2: bars measured, marks by formula")
    axis.legend(loc="upper right", ncols=4, fontsize=9)
    figures.show(
        figure,
        "Stacked bars of parameters, gradients and state for each number of ranks. DDP's stay the same. "
        "ZeRO-1's state shrinks with N, ZeRO-2's gradients as well. Marks of the formula sit on top of "
        "each bar.",
    )
