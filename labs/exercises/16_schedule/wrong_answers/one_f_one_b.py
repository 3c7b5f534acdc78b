# rejected: a step takes 15, allowed is 13
"""1F1B as it is."""


def schedule(rank, ranks, micro_batches):
    warm_up = min(ranks - rank, micro_batches)
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions.append(("B", number))
        if number + warm_up < micro_batches:
            actions.append(("F", number + warm_up))
    return actions
