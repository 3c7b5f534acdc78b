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
    highest = max(abs(number) for rank in ranks for number in rank["own"][digit])
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


LANES = (1.0, 0.0)  # heights of rank 0 and rank 1
ALONE = "#56B4E9"
MEETS = "#bbbbbb"


def five_steps() -> None:
    """Two ranks in time: what each does by itself, and where they meet."""
    figure, axis = figures.plt.subplots(figsize=(8.4, 2.4))
    _meeting(axis, 0.0, 0.9, "join")
    _meeting(axis, 5.0, 0.9, "talk:\nall_reduce")
    _meeting(axis, 7.0, 0.9, "leave")
    for lane, (asks, shares) in zip(LANES, ((0.8, 2.2), (0.8, 2.9)), strict=True):
        _step(axis, lane, 1.1, asks, "who am I?", ALONE)
        _step(axis, lane, 2.1, shares, "my share", ALONE)
        _step(axis, lane, 6.0, 0.8, "print" if lane else "", ALONE)
    _finish(axis, 8.0)
    figures.show(
        figure,
        "Two lanes in time, rank 0 and rank 1. Both join; each asks who it is and works on its own share, "
        "rank 1 for longer; they meet in all_reduce; rank 0 prints; both leave together.",
    )


def one_fails() -> None:
    """Two ranks in time: rank 1 fails, rank 0 waits for it and fails because the connection closes."""
    figure, axis = figures.plt.subplots(figsize=(8.4, 2.4))
    _meeting(axis, 0.0, 0.9, "barrier")
    _step(axis, LANES[0], 1.1, 3.4, "waits in the second barrier", MEETS)
    _step(axis, LANES[0], 4.6, 3.0, "Connection closed by peer", figures.COLOURS[1])
    _step(axis, LANES[1], 1.1, 3.2, "RuntimeError: told to fail", figures.COLOURS[5])
    axis.annotate("", (4.7, 0.68), (4.35, 0.1), arrowprops={"arrowstyle": "-|>", "color": "black"})
    axis.text(4.85, 0.3, "its connections close", va="center", fontsize=10)
    _finish(axis, 8.0)
    figures.show(
        figure,
        "Two lanes in time. Both ranks pass a barrier. Rank 1 fails with its own error, the cause. Rank 0 "
        "waits in the second barrier until rank 1's connections close, and fails with Connection closed by "
        "peer, the echo.",
    )


def _step(axis, lane: float, begin: float, length: float, text: str, colour: str) -> None:
    if not text:
        return
    axis.barh(lane, length, left=begin, height=0.5, color=colour, edgecolor="black")
    axis.text(begin + length / 2, lane, text, ha="center", va="center", fontsize=10)


def _meeting(axis, begin: float, length: float, text: str) -> None:
    """A step that no rank leaves before the other one has arrived."""
    axis.barh(0.5, length, left=begin, height=1.5, color=MEETS, edgecolor="black")
    axis.text(begin + length / 2, 0.5, text, ha="center", va="center", fontsize=10)


def _finish(axis, end: float) -> None:
    axis.set(xlim=(-0.1, end), ylim=(-0.4, 1.4), xticks=[], xlabel="time →")
    axis.set_yticks(LANES, ["rank 0", "rank 1"])
    axis.tick_params(length=0)
    axis.grid(visible=False)
