# rejected: a step takes 14, allowed is 13
"""Splits backward, but does each W right after its I."""


def schedule(rank, ranks, micro_batches):
    warm_up = min(ranks - rank, micro_batches)
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions.append(("I", number))
        actions.append(("W", number))
        if number + warm_up < micro_batches:
            actions.append(("F", number + warm_up))
    return actions
