"""Planted faults of lesson 19; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("19_unit", "untyped_storage().resize_(0)", "untyped_storage()", "between steps no unit is whole"),
    Fault(
        "19_unit",
        "ReduceOp.AVG",
        "ReduceOp.SUM",
        "step 0, unit 2, DDP: gradient: differs by",
        run="19_by_hand",
    ),
    Fault(
        "19_unit",
        "flat.chunk(self.ranks)[self.rank].clone()",
        "flat.flip(0).chunk(self.ranks)[self.rank].clone()",
        "step 0, unit 2, DDP: ",
        run="19_by_hand",
    ),
    Fault(
        "19_by_hand",
        "broadcast_from_rank_0(model.parameters())",
        "pass",
        "step 0, unit 2, DDP: gradient: differs by",
    ),
    Fault(
        "19_fsdp",
        "broadcast_from_rank_0(net.parameters(), everyone)",
        "pass",
        "fsdp2, 2 ranks, step 0: ",
    ),
    Fault("19_fsdp", "wrap(net, mesh)", "ddp(net, mesh)", "fsdp2 on 2 ranks: 2.000 times"),
    Fault("19_units", "1 + 2 * len(units)", "2 + 2 * len(units)", "all_gather 1, by the formula 2"),
    Fault(
        "19_units",
        "root + max([size(unit) for unit in units], default=0)",
        "size(net)",
        "one per block, reshard after forward: unsharded",
    ),
    Fault("19_units", "2 * size(net) - root", "size(net)", "one per block, reshard after forward: by_rule"),
    Fault(
        "19_details",
        'given if moment == "before" else model.parameters()',
        "model.parameters()",
        "AssertionError",
    ),
    Fault("19_details", "clip_grad_norm_(by_hand.", "clip_grad_norm_(alone.", "each rank's norm was to be"),
    Fault(
        "19_details", "reduce_dtype=reduced", "reduce_dtype=torch.float32", "bytes per parameter, by rule 6"
    ),
    Fault(
        "19_unit",
        "self.shard.to(self.compute_dtype)",
        "self.shard.to(self.compute_dtype).roll(1)",
        "step 0, unit 2, DDP: ",
        run="19_by_hand",
    ),
    Fault("19_practice", "(every or last)", "(True)", "accumulation: 20 reduce-scatters of 5 units"),
    Fault("19_practice", "        model.scale.fill_(0.5)\n", "", "Tensor-likes are not close"),
    Fault(
        "19_practice",
        "if self.checkpointed else block(x)",
        "if False else block(x)",
        "activations, checkpointed: saved too little",
    ),
    Fault(
        "19_practice", "copy_(parts[rank])", "copy_(parts[0])", "drawn layer by layer: first.weight: differs"
    ),
    Fault("19_practice", "            delattr(layer, name)\n", "", "bytes at once"),
    Fault("19_practice", ".requires_grad_(False)", "", "uniform original parameter dtype"),
    Fault("19_practice", "model.forward(x)\n    except", "model(x)\n    except", "(x) was to fail"),
    Fault("19_state", "if group.rank > 0:", "if group.rank > 9:", "one rank cannot gather alone"),
    Fault(  # a checkpoint of another step than the one at which training goes on
        "19_load",
        "as group:\n",
        "as group:\n"
        "        import lab_19_state as saver\n"
        "        mesh = init_device_mesh(group.device.type, (group.world_size,))\n"
        "        saver.train_and_save(mesh, group, saver.Config(steps=2))\n",
        "after more steps",
    ),
]
