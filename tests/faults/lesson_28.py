"""Planted faults of lesson 28."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="28_train",
        old='        "attention": gather_once,\n',
        new="",
        told="('tp', 'all_gather') is (",
        run="28_four",
    ),
    Fault(
        lab="28_train",
        old="local(p.grad).square().sum() / copies",
        new="local(p.grad).square().sum()",
        told="norm of gradients: differs",
        run="28_four",
        ranks=4,
    ),
    Fault(
        lab="28_train",
        old="labels.flatten())",
        new='labels.flatten(), reduction="sum")',
        told="loss: differs",
        run="28_four",
    ),
    Fault(
        lab="28_four",
        old="IN_FLOAT64 = replace(FLOAT64, per_tensor=8)",
        new="IN_FLOAT64 = FLOAT64",
        told="optimizer is ",
    ),
    Fault(
        lab="28_any_rank",
        old="ffn=53248",
        new="ffn=53249",
        told="the script's model has",
        ranks=0,
        arguments=("5003/8192",),
    ),
]
