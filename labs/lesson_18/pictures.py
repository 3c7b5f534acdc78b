"""The pictures of lesson 18, drawn from what its proofs recorded."""

from shared.runtime import figures

WAYS = ("DDP", "ZeRO-1", "ZeRO-2")
KINDS = ("parameters", "gradients", "state")


def memory(by_hand, world_size):
    """Memory by number of ranks, on the rank that holds most; ``by_hand`` has the rows of each rank."""
    KB = by_hand[0]["ZeRO-1, 1, 1"]["size"] / 1e3
    ranks = range(1, world_size + 1)

    def fullest(way, n, kind):
        return max(rank.get(f"{way}, 1, {n}", {}).get(kind, 0) for rank in by_hand) / 1e3

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
        axis.text(at[-1] - 0.12, bottom[-1] + 0.15 * KB, way, ha="left", fontsize=10)
    axis.set(xlabel="ranks N", ylabel="KB on a rank", xticks=ranks, ylim=(0, 5 * KB))
    axis.set_title("Memory of DDP, ZeRO-1 and ZeRO-2: bars measured, marks by formula")
    axis.legend(loc="upper right", ncols=4, fontsize=9)
    figures.show(
        figure,
        "Stacked bars of parameters, gradients and state for each number of ranks. DDP's stay the same. "
        "ZeRO-1's state shrinks with N, ZeRO-2's gradients as well. Marks of the formula sit on top of "
        "each bar.",
    )
