"""Planted faults of lesson 19."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    Fault(lab="19_life", old="ReduceOp.AVG", new="ReduceOp.SUM", told="another weight"),
    Fault(
        lab="19_unit",
        old="untyped_storage().resize_(0)",
        new="untyped_storage()",
        told="after backward a unit is still whole",
    ),
    Fault(
        lab="19_torch",
        old="reduce_dtype=torch.float32",
        new="reduce_dtype=torch.bfloat16",
        told="script, step 0: ",
        run="19_fsdp",
    ),
    Fault(
        lab="19_torch",
        old="    fully_shard(model, mesh=mesh, mp_policy=policy)  #",
        new="    #",
        told="in build_sharded",
        arguments=("FOLDER",),
    ),
    Fault(
        lab="19_torch",
        old="        cast_forward_inputs=False,  #",
        new="        #",
        told="FSDP has cast the rotary table",
        arguments=("FOLDER",),
    ),
    Fault(
        lab="19_torch",
        old="    if operation in SAVED:\n",
        new="    if False:\n",
        told="selective checkpointing should save memory and repeat no product",
        run="19_practice",
    ),
    Fault(
        lab="19_fsdp",
        old="mesh=mesh, reshard_after_forward=2)",
        new="mesh=mesh)",
        told="gathers among [4, 4, 4, 4",
        ranks=4,
    ),
    Fault(
        lab="19_state",
        old='"one batch more on rank 0": (3, 2)',
        new='"one batch more on rank 0": (3, 3)',
        told="rank 0 should wait for a rank that has gone on",
    ),
    Fault(
        lab="19_practice",
        old="off = ((orthogonalized(own) - rows)",
        new="off = ((rows - rows)",
        told="on local rows by 0.00",
    ),
    Fault(
        lab="19_fsdp",
        old="broadcast_from_rank_0(net.parameters())",
        new="pass",
        told="fsdp2, 2 ranks, step 0: ",
    ),
    Fault(lab="19_fsdp", old="wrap(net, mesh)", new="ddp(net, mesh)", told="fsdp2: 2.000 times the bytes"),
    Fault(
        lab="19_units",
        old="1 + 2 * len(units)",
        new="2 + 2 * len(units)",
        told="all_gather 1, by the formula 2",
    ),
    Fault(
        lab="19_units",
        old="        unit.set_modules_to_backward_prefetch([unit])  #",
        new="        #",
        told="without prefetching the peak should be lower",
    ),
    Fault(
        lab="19_details",
        old="clip_grad_norm_(shard, ",
        new="clip_grad_norm_(alone.parameters(), ",
        told="each rank's norm should be",
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
        lab="19_state",
        old="if group.rank > 0:",
        new="if group.rank > 9:",
        told="one rank cannot gather alone",
    ),
    Fault(
        lab="19_state",
        old="StateDictOptions(full_state_dict=True))",
        new="WHOLE)",
        told="without cpu_offload each rank should get",
    ),
    *group_of(
        Fault(
            lab="19_unit",
            old="ReduceOp.AVG",
            new="ReduceOp.SUM",
            told="step 0, first layer, DDP: gradient: differs by",
        ),
        Fault(
            lab="19_unit",
            old='raise ValueError("a parameter',
            new='return  # ("a parameter',
            told="a unit should have said: a parameter is in another unit",
        ),
        Fault(
            lab="19_unit",
            old="Variable._execution_engine.queue_callback(self.after_backward)",
            new="pass",
            told="a unit should have said: after backward a unit",
        ),
        run="19_by_hand",
    ),
]
