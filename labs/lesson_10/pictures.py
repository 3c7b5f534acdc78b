"""The pictures of lesson 10, drawn from what its proofs recorded."""

from shared.runtime import figures


def random_numbers(ways, ranks):
    """Which workers draw the same numbers: ``{way of seeding: {"rank.worker": numbers}}``."""
    workers = list(next(iter(ways.values())))
    figure, axes = figures.plt.subplots(1, 4, figsize=(10, 0.9 + 0.5 * ranks))
    for axis, (way, drawn) in zip(axes, ways.items(), strict=True):
        names = {}  # the first worker that drew these numbers gives them their letter
        letters = [names.setdefault(tuple(drawn[one]), chr(65 + len(names))) for one in workers]
        for one, letter in zip(workers, letters, strict=True):
            rank, worker = map(int, one.split("."))
            axis.text(worker, rank, letter, ha="center", va="center", fontsize=14)
        axis.set(xlim=(-0.5, 1.5), ylim=(ranks - 0.5, -0.5), xticks=(0, 1), xlabel="worker")
        axis.set(yticks=range(ranks), title=way.replace(" for", "\nfor").replace(" in", "\nin"))
        axis.title.set_fontsize(11)
        axis.grid(visible=False)
    axes[0].set_ylabel("rank")
    figures.show(
        figure,
        "Four tables of ranks by workers; equal letters mean equal random numbers. One seed in each "
        "worker: one letter. One seed for all ranks: a letter for each column. Seed + rank + worker: equal "
        "along the diagonals. A generator for each rank: all letters differ.",
    )
