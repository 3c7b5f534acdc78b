"""Planted faults of lesson 19."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="19_unit",
        old="untyped_storage().resize_(0)",
        new="untyped_storage()",
        told="between steps no unit is whole",
    ),
    Fault(
        lab="19_unit",
        old="ReduceOp.AVG",
        new="ReduceOp.SUM",
        told="step 0, unit 2, DDP: gradient: differs by",
        run="19_by_hand",
    ),
    Fault(
        lab="19_fsdp",
        old="broadcast_from_rank_0(net.parameters(), everyone)",
        new="pass",
        told="fsdp2, 2 ranks, step 0: ",
    ),
    Fault(lab="19_fsdp", old="wrap(net, mesh)", new="ddp(net, mesh)", told="fsdp2 on 2 ranks: 2.000 times"),
    Fault(
        lab="19_units",
        old="1 + 2 * len(units)",
        new="2 + 2 * len(units)",
        told="all_gather 1, by the formula 2",
    ),
    Fault(
        lab="19_details",
        old='given if moment == "before" else model.parameters()',
        new="model.parameters()",
        told="AssertionError: {'before': [",
    ),
    Fault(
        lab="19_details",
        old="clip_grad_norm_(by_hand.",
        new="clip_grad_norm_(alone.",
        told="each rank's norm was to be",
    ),
    Fault(
        lab="19_details",
        old="reduce_dtype=reduced",
        new="reduce_dtype=torch.float32",
        told="bytes per parameter, by rule 6",
    ),
    Fault(
        lab="19_practice",
        old="(every or last)",
        new="(True)",
        told="accumulation: 20 reduce-scatters of 5 units",
    ),
    Fault(
        lab="19_practice",
        old="if self.checkpointed else block(x)",
        new="if False else block(x)",
        told="activations, checkpointed: saved too little",
    ),
    Fault(
        lab="19_practice",
        old="copy_(parts[rank])",
        new="copy_(parts[0])",
        told="drawn layer by layer: first.weight: differs",
    ),
    Fault(lab="19_practice", old="            delattr(layer, name)\n", new="", told="bytes at once"),
    Fault(
        lab="19_practice",
        old="model.forward(x)\n    except",
        new="model(x)\n    except",
        told="(x) was to fail",
    ),
    Fault(
        lab="19_state",
        old="if group.rank > 0:",
        new="if group.rank > 9:",
        told="one rank cannot gather alone",
    ),
    Fault(  # a checkpoint of another step than the one at which training goes on
        lab="19_load",
        old="as group:\n",
        new="as group:\n"
        "        import lab_19_state as saver\n"
        "        mesh = init_device_mesh(group.device.type, (group.world_size,))\n"
        "        saver.train_and_save(mesh, group, saver.Config(steps=2))\n",
        told="after more steps",
    ),
]
