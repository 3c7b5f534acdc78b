# rejected: expected a reason and a rank
"""Returns no pair."""


def diagnose(traces):
    return None
