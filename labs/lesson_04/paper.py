"""Each collective on paper: by one process, with lists in place of ranks."""


def on_paper(n: int) -> list[dict]:
    """{collective: what a rank holds before and after it} of each of ``n`` ranks; None is undefined."""
    held = [[f"{letter}{place}" for place in range(n)] for letter in "ABCDEFGH"[:n]]
    columns = [list(column) for column in zip(*held, strict=True)]
    sums = [f"Σ{place}" for place in range(n)]
    nothing: list[list] = [[] for _ in range(n - 1)]
    undefined: list[list] = [[None] * n for _ in range(n - 1)]
    moments = {
        "broadcast": (held, [held[0]] * n),
        "scatter": ([held[0], *nothing], [[piece] for piece in held[0]]),
        "gather": ([row[:1] for row in held], [columns[0], *nothing]),
        "all_gather": ([row[:1] for row in held], [columns[0]] * n),
        "all_to_all": (held, columns),
        "reduce": (held, [sums, *undefined]),
        "all_reduce": (held, [sums] * n),
        "reduce_scatter": (held, [[total] for total in sums]),
    }
    return [
        {name: {"before": before[rank], "after": after[rank]} for name, (before, after) in moments.items()}
        for rank in range(n)
    ]
