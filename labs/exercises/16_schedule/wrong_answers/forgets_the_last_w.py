# rejected: rank 1 never does W of micro-batch 3 in stage 1
"""Does not make up for the W that it has put off."""


def schedule(rank, ranks, micro_batches):
    warm_up = min(ranks - rank, micro_batches)
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions.append(("I", number))
        if number >= rank:
            actions.append(("W", number - rank))
        if number + warm_up < micro_batches:
            actions.append(("F", number + warm_up))
    return actions
