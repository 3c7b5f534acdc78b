"""Planted faults of lesson 28."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    *group_of(
        Fault(  # what an earlier edition of the lesson had
            lab="28_rooflines",
            old="/ (near * machine.card)",
            new="/ machine.card",
            told="s of communication, the whole step took",
            run="28_measured",
        ),
        Fault(
            lab="28_rooflines",
            old="size * (ranks - near) / ranks / machine.card",
            new="size * (ranks - near) / ranks / (near * machine.card)",
            told="s, the planner says",
            run="28_measured",
        ),
        Fault(lab="28_layouts", old="MARGIN = 1.08", new="MARGIN = 1.0", told="GPUs: FSDP takes"),
        ranks=0,
    ),
]
