"""The pictures of lesson 00, drawn from what its proofs recorded."""

from shared.runtime import figures


def two_gradients(ranks: list[dict]) -> None:
    """A row for each rank: its images, its own gradient of one digit, and the gradient of all."""
    world_size = len(ranks)
    digit, shown = ranks[0]["digits"][0], len(ranks[0]["images"])
    size, widths = (9.6, 0.7 + 1.15 * world_size), [1] * shown + [0.4, 1.7, 0.4, 1.7]
    figure, axes = figures.plt.subplots(
        world_size, shown + 4, figsize=size, squeeze=False, width_ratios=widths
    )
    highest = max(abs(number) for rank in ranks for key in ("own", "together") for number in rank[key][digit])
    for row, rank in zip(axes, ranks, strict=True):
        for axis, image in zip(row[:shown], rank["images"], strict=True):
            axis.imshow(image, cmap="gray_r")
        for place, which in ((shown + 1, "own"), (shown + 3, "together")):
            rows = [rank[which][digit][start : start + 8] for start in range(0, 64, 8)]
            row[place].imshow(rows, cmap="gray", vmin=-highest, vmax=highest)
        for axis in row:
            axis.set(xticks=[], yticks=[])
        for arrow in (row[shown], row[shown + 2]):
            arrow.axis("off")
            arrow.text(0.5, 0.5, "→", ha="center", va="center", fontsize=18, transform=arrow.transAxes)
        row[0].set_ylabel(f"rank {rank['rank']}")
    axes[0][shown // 2].set_title("its own images", loc="right")
    axes[0][shown + 1].set_title("its own\ngradient")
    axes[0][shown + 3].set_title("after\nall_reduce")
    figures.show(
        figure,
        f"A row for each of {world_size} processes: {shown} digits, its gradient, "
        "and the one gradient of all.",
    )


def forgotten(ranks: list[dict]) -> None:
    """For each rank the gradient of one digit: right, without all_reduce, and without the share."""
    columns = {"as it should be": "together", "without all_reduce": "own", "without the share": "not_shared"}
    digit = ranks[0]["digits"][0]
    figure, axes = figures.plt.subplots(len(ranks), 3, figsize=(6.6, 0.7 + 1.6 * len(ranks)), squeeze=False)
    highest = max(abs(number) for rank in ranks for key in columns.values() for number in rank[key][digit])
    for row, rank in zip(axes, ranks, strict=True):
        for axis, (title, key) in zip(row, columns.items(), strict=True):
            rows = [rank[key][digit][start : start + 8] for start in range(0, 64, 8)]
            axis.imshow(rows, cmap="gray", vmin=-highest, vmax=highest)
            axis.set(xticks=[], yticks=[])
            axis.grid(visible=False)
            if rank is ranks[0]:
                axis.set_title(title, fontsize=11)
        row[0].set_ylabel(f"rank {rank['rank']}")
    figures.show(
        figure,
        f"The gradient of one digit on {len(ranks)} ranks. As it should be: the same on all. Without "
        "all_reduce: each has its own. Without the share: the same on all, with far more contrast.",
    )
