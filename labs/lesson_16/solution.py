"""Exercise 16: a schedule with a third of the bubble of 1F1B, and no more micro-batches in flight."""


def schedule(rank: int, ranks: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return what ``rank`` does, in order, as (kind, micro-batch). Each rank holds one stage.

    Kinds: "F" is forward. "I" is the half of backward that computes the gradient of the stage's input, which
    the rank before waits for. "W" is the other half, the gradients of the parameters: nobody waits for them.
    Each of the three takes one unit of time. "B" is I and W in one, and takes two.

    For each micro-batch a rank does F, then I, then W. Between I and W it may do other things. It holds a
    micro-batch from F until W.

    With at least as many micro-batches as ranks:
    - no rank holds more than ``ranks`` micro-batches at once, as in 1F1B,
    - the step takes no longer than 3 * micro_batches + ranks - 1.
    """
    warm_up = min(ranks - rank, micro_batches)  # as in 1F1B
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions.append(("I", number))
        # Which W comes here, if any?
        # solution: begin
        if number >= rank:  # later ranks forward less to begin with, so they may put off more W
            actions.append(("W", number - rank))
        # solution: end
        if number + warm_up < micro_batches:
            actions.append(("F", number + warm_up))
    # Which `W`s remain?
    # solution: begin
    for number in range(max(0, micro_batches - rank), micro_batches):
        actions.append(("W", number))
    # solution: end
    return actions
