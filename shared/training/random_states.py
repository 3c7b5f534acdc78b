"""Each rank's random numbers, for a checkpoint. Taught in lesson 11."""

import torch

from shared.runtime.group import Group
from shared.runtime.report import gather_on_rank_0


def gather_random_states(generator: torch.Generator, group: Group) -> list[dict] | None:
    """The states of torch's random numbers and of ``generator`` by rank; None on ranks above 0.

    Collective: all ranks must call it. What numpy and ``random`` draw in this process is not kept.
    """
    own = {"cpu": torch.get_rng_state(), "generator": generator.get_state()}
    if group.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(group.device)
    return gather_on_rank_0(own) or None


def set_random_states(states: list[dict], generator: torch.Generator, group: Group) -> None:
    """Go on where ``gather_random_states`` was called. With another number of ranks change nothing."""
    if len(states) != group.world_size:
        return
    own = {name: state.cpu() for name, state in states[group.rank].items()}
    torch.set_rng_state(own["cpu"])
    generator.set_state(own["generator"])
    if group.device.type == "cuda" and "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"], group.device)
