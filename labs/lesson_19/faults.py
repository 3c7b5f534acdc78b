"""Planted faults of lesson 19."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
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
        told="script, step 0: 0.0.weight: differs by",
        run="19_fsdp",
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
    Fault(
        lab="19_state",
        old="StateDictOptions(full_state_dict=True))",
        new="WHOLE)",
        told="without cpu_offload each rank was to get",
    ),
    Fault(
        lab="19_asked",
        old="for module in (model.tokens, model.head, model):",
        new="for module in (model,):",
        told="two units for one tied weight were to be",
    ),
    Fault(lab="19_asked", old="        model.fill_table()\n", new="", told="after fill_table: loss"),
    Fault(
        lab="19_asked",
        old="average.lerp_(p.to_local().detach(), 1 - cfg.decay)",
        new="average.lerp_(p.to_local().detach(), cfg.decay)",
        told="moving average: differs by",
    ),
    Fault(
        lab="19_asked",
        old="bias=False, dtype=dtype,",
        new="bias=False,",
        told="ten steps of 0.001 moved the weights by",
    ),
    Fault(
        lab="19_asked",
        old="(always or number == cfg.micro_batches - 1)",
        new="(True)",
        told="HSDP: 8 and 8 all-reduces",
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
            old='if any(hasattr(p, "in_unit") for p in self.params):',
            new="if False:",
            told="a unit was to say: a parameter is in another unit",
        ),
        Fault(
            lab="19_unit",
            old="Variable._execution_engine.queue_callback(self.after_backward)",
            new="pass",
            told="a unit was to say: after backward a unit",
        ),
        run="19_by_hand",
    ),
]
