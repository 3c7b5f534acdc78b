"""Planted faults of lesson 22."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    Fault(
        lab="22_figure",
        old='FIGURE_5 = {"dp": 2, "pp": 2, "cp": 2, "tp": 2}',
        new='FIGURE_5 = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}',
        told="tp: GPU 0 should be with GPU 1",
        ranks=0,
    ),
    Fault(
        lab="22_torch",
        old=".square().mean()",
        new=".square().sum()",
        told="lab_22_torch, step 0: loss",
        run="22_load",
        ranks=4,
    ),
    Fault(
        lab="22_load",
        old='dcp.load({"model": state, "optimizer": moments}, checkpoint_id=folder)',
        new='dcp.load({"model": state}, checkpoint_id=folder)',
        told=", after loading, step 0: parameter",
    ),
    *group_of(
        Fault(
            lab="22_mesh",
            old=".view(tuple(sizes.values()))",
            new=".view(tuple(sizes.values())).T",
            told="torch counts as we do",
        ),
        Fault(
            lab="22_mesh",
            old='DistributedSampler(batch, num_replicas=mesh["dp"].size(), rank=dp, shuffle=False)',
            new="DistributedSampler(batch, shuffle=False)",
            told="rows: the same along tp, others along dp",
        ),
        Fault(
            lab="22_mesh",
            old="    torch.manual_seed(0)\n",
            new="    torch.manual_seed(dist.get_rank())\n",
            told="on a CPU shards are equal, on GPUs they differ",
        ),
        Fault(
            lab="22_load",
            old="    norm = square.sqrt()\n",
            new="    norm = square\n",
            told=", step 0: gradient of",
        ),
        Fault(
            lab="22_load",
            old="        dist.all_reduce(square, group=pp_group)\n",
            new="        pass\n",
            told="clipped in stages: norm",
            run="22_norm",
        ),
        Fault(
            lab="22_load",
            old=" if id(p) not in elsewhere",
            new="",
            told="clipped in stages: norm",
            run="22_norm",
        ),
        # The tied weight is left out of the clipping, too
        Fault(
            lab="22_norm",
            old="clip_by_mesh(stage.parameters(), cfg.max_norm, pp_group, counted_elsewhere)",
            new="clip_by_mesh(\n"
            "        [p for p in stage.parameters() if all(p is not q for q in counted_elsewhere)],\n"
            "        cfg.max_norm,\n"
            "        pp_group,\n"
            "    )",
            told="clipped in stages: tied",
        ),
        Fault(
            lab="22_norm",
            old='fsdp_tp(job, data=("dp", "tp"))',
            new="fsdp_tp(job)",
            told="rows of its own for each rank should give another loss",
        ),
        ranks=4,
    ),
    *group_of(
        Fault(
            lab="22_rows_data",
            old="step = steps_of(optimizer, mean_of_rows(job, model))",
            new="step = steps_of(optimizer, mean_of_rows(job, model, 0, 2))",
            told="single, step 0: loss",
            arguments=("--only", "single"),
        ),
        Fault(
            lab="19_sharding",
            old="        fully_shard(unit, mesh=mesh, **options)\n",
            new="        pass\n",
            told="FSDP: a step calls dp all_gather (1, ",
            arguments=("--only", "FSDP"),
        ),
        Fault(
            lab="22_rows_sharded",
            old="        recomputing(model)\n",
            new="        pass\n",
            told="FSDP, checkpointing: forward leaves ",
            arguments=("--only", "FSDP, checkpointing"),
        ),
        # Checkpointing that sends nothing more, as an earlier page had it
        Fault(
            lab="22_rows_tensor",
            old="again = len(model.blocks) if recompute else 0",
            new="again = 0",
            told="TP + SP, checkpointing: a step calls tp all_gather (26, ",
            arguments=("--only", "TP + SP, checkpointing"),
        ),
        Fault(
            lab="22_rows_sequence",
            old="(4 if recompute else 3)",
            new="3",
            told="CP, ring, checkpointing: a step calls ",
            arguments=("--only", "CP, ring, checkpointing"),
        ),
        Fault(
            lab="22_rows_experts",
            old="(2, 3) if recompute else (1, 2)",
            new="(1, 2)",
            told="EP, checkpointing: a step calls ",
            arguments=("--only", "EP, checkpointing"),
        ),
        Fault(
            lab="16_executor",
            old="warm_up = min(ranks - rank, micro_batches)",
            new="warm_up = micro_batches",
            told="PP, 1F1B: 8 micro-batches at once",
            arguments=("--only", "PP, 1F1B"),
        ),
        Fault(
            lab="22_rows_sequence",
            old="    shard_units(model, joined)\n    sum_gradients_only(model)\n",
            new="    shard_units(model, joined)\n",
            told="FSDP x CP, step 0: gradient of",
            arguments=("--only", "FSDP x CP"),
        ),
        run="22_table",
        ranks=4,
    ),
    *group_of(
        Fault(
            lab="22_table",
            old=" / (count // parameter.numel())",
            new="",
            told="DDP: the norm of the gradient is",
        ),
        Fault(
            lab="22_table", old="else wire_bytes() - before", new="else 0", told="required and on the wire"
        ),
        ranks=4,
        arguments=("--only", "DDP"),
    ),
]
