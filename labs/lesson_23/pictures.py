"""The pictures of lesson 23, drawn from what its cells computed."""

from shared.runtime import figures


def one_weight_twice() -> None:
    """A weight of 12 x 8 that two trainers hold by rows and two generators by columns."""
    trainers = {0: (slice(0, 6), slice(0, 8)), 1: (slice(6, 12), slice(0, 8))}  # rows and columns, of 12 x 8
    generators = {2: (slice(0, 12), slice(0, 4)), 3: (slice(0, 12), slice(4, 8))}
    pieces = {(t, g): _overlap(trainers[t], generators[g]) for t in trainers for g in generators}
    figure, (left, right) = figures.plt.subplots(1, 2, figsize=(7.2, 3.4), sharey=True)
    for axis, number, title in ((left, 0, "2 trainers: FSDP, rows"), (right, 1, "2 generators: TP, columns")):
        for ranks, (rows, columns) in pieces.items():
            height, width = rows.stop - rows.start, columns.stop - columns.start
            colour, hatch = figures.COLOURS[ranks[0]], figures.HATCHES[ranks[0]]
            axis.add_patch(
                figures.plt.Rectangle(
                    (columns.start, rows.start), width, height, fc=colour, hatch=hatch, alpha=0.45, ec="white"
                )
            )
            words = f"to rank {ranks[1]}" if number == 0 else f"from rank {ranks[0]}"
            axis.text(columns.start + width / 2, rows.start + height / 2, words, ha="center", va="center")
        for rank, (rows, columns) in (trainers if number == 0 else generators).items():
            height, width = rows.stop - rows.start, columns.stop - columns.start
            axis.add_patch(
                figures.plt.Rectangle(
                    (columns.start, rows.start), width, height, fill=False, ec="black", lw=3
                )
            )
            axis.text(columns.start + 0.2, rows.start + 0.9, f"rank {rank}", weight="bold")
        axis.set(xlim=(-0.2, 8.2), ylim=(12.2, -0.2), title=title, xticks=[0, 4, 8], yticks=[0, 6, 12])
        axis.grid(visible=False)
    figures.show(
        figure,
        "One weight twice. On the left two trainers hold its upper and its lower half, each cut into a left "
        "and a right piece, for ranks 2 and 3. On the right two generators hold its left and its right "
        "half, each made of an upper piece from rank 0 and a lower piece from rank 1.",
    )


def _overlap(one: tuple, other: tuple) -> tuple:
    """Rows and columns that two ranks have in common."""
    return tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
