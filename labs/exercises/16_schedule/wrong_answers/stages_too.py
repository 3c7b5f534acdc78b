# rejected: expected a list of pairs such as ("F", 0)
"""Gives triples, as the executor takes them."""


def schedule(rank, ranks, micro_batches):
    actions = [("F", rank, number) for number in range(micro_batches)]
    for number in range(micro_batches):
        actions.append(("B", rank, number))
    return actions
