"""Planted faults of lesson 19; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "19_unit",
        "        mine /= dist.get_world_size()  # gloo has no average\n",
        "",
        "step 0, unit 2, DDP: gradient: differs by",
    ),
    Fault("19_unit", "flat.chunk(", "flat.flip(0).chunk(", "step 0, unit 2, DDP: "),
    Fault(
        "19_fsdp",
        "broadcast_from_rank_0(net.parameters(), mesh.get_group())",
        "pass",
        "fsdp2, 2 ranks, step 0: ",
    ),
    Fault("19_fsdp", "wrap(net, mesh)", "ddp(net, mesh)", "fsdp2 on 2 ranks: 2.000 times"),
    Fault("19_units", "1 + (2 if again else 1) * len(units)", "1 + 2 * len(units)", "by the formula"),
    Fault("19_units", "root + max(map(size, units), default=0)", "size(net)", "by the formula"),
    Fault(
        "19_details",
        'given if moment == "before" else model.parameters()',
        "model.parameters()",
        "AssertionError",
    ),
    Fault("19_details", "clip_grad_norm_(old.parameters(), ", "old.clip_grad_norm_(", "above the limit"),
    Fault("19_state", "if group.rank > 0:", "if group.rank > 9:", "one rank cannot gather alone"),
]

STILL_WITHOUT = [
    "19_load",
]
