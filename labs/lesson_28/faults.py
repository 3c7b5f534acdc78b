"""Planted faults of lesson 28; those of its rooflines are in tests/test_rooflines.py."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(  # what an earlier edition of the lesson had
        lab="28_rooflines",
        old="/ (near * machine.card)",
        new="/ machine.card",
        told="tokens, the book has 2,475",
        ranks=0,
    ),
    Fault(lab="28_layouts", old="MARGIN = 1.08", new="MARGIN = 1.0", told="Gb/s: the fastest is", ranks=0),
    Fault(
        lab="28_layouts",
        old="network=Network(card=card), stack=stack)",
        new="network=Network(), stack=stack)",
        told="at 100 Gb/s: the fastest is FSDP, not HSDP",
        ranks=0,
    ),
    Fault(
        lab="28_layouts",
        old='recompute == "full"',
        new='recompute != "full"',
        told="recompute every block, not [",
        ranks=0,
    ),
    Fault(
        lab="28_layouts",
        old="plan_of(8, 1, Network())",
        new="plan_of(64, 1, Network())",
        told="GiB, not 71.6, which is tight",
        ranks=0,
    ),
    Fault(
        lab="28_layouts",
        old="layout.zero != 3",
        new="layout.zero == 3",
        told="with plain DP, not TP and CP of 8B alone",
        ranks=0,
    ),
    Fault(
        lab="28_layouts",
        old='Network(), "op")',
        new='Network(), "full")',
        told="s, not 53 GiB, 65.19 s",
        ranks=0,
    ),
    Fault(
        lab="28_layouts",
        old="hop_inside=0.0, hop_between=0.0",
        new="hop_inside=0.0",
        told="not both 1.13",
        ranks=0,
    ),
    Fault(
        lab="28_layouts",
        old="plan_of(512, 1, fast)",
        new="plan_of(512, 1, Network())",
        told="s are lost to communication, not 0.10",
        ranks=0,
    ),
]
