"""Planted faults of lesson 18."""

from tests.planted import Fault, group_of

FAULTS: list[Fault] = [
    Fault(
        lab="18_zero_1",
        old="        self.gather_parameters()\n",
        new="",
        told="the ranks have different parameters",
    ),
    Fault(
        lab="18_by_hand",
        old="        mean = torch.empty_like(shard)\n",
        new="        mean = torch.zeros_like(self.padded(p.grad)).chunk(self.ranks)[0]\n",
        told="ZeRO-2: gradients 1.00 S",
    ),
    Fault(
        lab="18_by_hand",
        old='"ZeRO-1": (Zero1, 2, 3)',
        new='"ZeRO-1": (TorchsZero1, 2, 3)',
        told="ZeRO-1: 3.00 halves of an all-reduce by rule",
    ),
    Fault(
        lab="18_by_hand",
        old="return ZeroRedundancyOptimizer(self.params, build, process_group=group)",
        new="return build(self.params)",
        told="torch's ZeRO-1: state 2.00 S",
    ),
    # Gradients averaged in bfloat16.
    Fault(
        lab="18_masters",
        old="self.gradient.float()",
        new="self.gradient",
        told="masters in float32, N = 2, step",
    ),
    Fault(
        lab="18_masters",
        old="            self.part[own] = shard.detach()  # rounded\n",
        new="            pass\n",
        told="parameters should be the rounded masters",
    ),
    Fault(
        lab="18_masters",
        old="self.optimizer = build(options)",
        new="self.optimizer = build(self.shards)",
        told="masters in float32, N = 1, step 0",
    ),
    Fault(
        lab="18_masters",
        old="            master.copy_(saved)\n",
        new="            pass\n",
        told="masters in float32, N = 1, step 1",
    ),
    Fault(
        lab="18_masters",
        old="if self.versions_of_parameters() != self.versions:",
        new="if False:",
        told="WithMasters should have refused a model",
    ),
    Fault(
        lab="18_restart",
        old="        padded[: len(whole)] = whole\n",
        new="        padded[len(padded) - len(whole) :] = whole\n",
        told="restarted Zero1",
        ranks=3,
    ),
    Fault(
        lab="18_restart",
        old="    sharded.load_state_dict(saved)\n",
        new="",
        told="restarted torch's class",
        ranks=3,
    ),
    Fault(
        lab="18_faults",
        old="    optimizer.consolidate_state_dict(to=0)\n    train(ddp, optimizer, 1, group)\n",
        new="    train(ddp, optimizer, 1, group)\n    optimizer.consolidate_state_dict(to=0)\n",
        told="the state's parameters have made [2] steps",
    ),
    Fault(
        lab="18_faults",
        old="    ours.load_state_dict(saved[0])\n",
        new="",
        told="Zero1: ranks that have moments of another rank",
    ),
    Fault(
        lab="18_faults",
        old="    saved = [optimizer.optim.state_dict()]\n",
        new="    optimizer.consolidate_state_dict(to=0)\n"
        "    saved = [optimizer.state_dict() if group.rank == 0 else None]\n",
        told="rank 0's own state, in torch's class: loaded",
    ),
    Fault(
        lab="18_faults",
        old="    optimizer.load_state_dict(saved[0])\n    train(again",
        new="    train(again",
        told="resumed 0.weight: differs",
    ),
    Fault(
        lab="18_faults",
        old='{"overlap_with_ddp": True}',
        new='{"overlap_with_ddp": False}',
        told="overlap_with_ddp=True alone has moved",
    ),
    *group_of(
        Fault(
            lab="18_zero_1",
            old="elif p.grad.data_ptr() != place.data_ptr()",
            new="elif False",
            told="Zero1 in a script, model.zero_grad(), step 0:",
        ),
        Fault(
            lab="18_zero_1",
            old="dist.all_reduce(square, group=self.group)",
            new="pass",
            told="step 0: norm: differs by",
        ),
        Fault(
            lab="18_zero_1",
            old="if [p.data_ptr() for p in self.params] != self.addresses",
            new="if False",
            told="Zero1 should have refused a model",
        ),
        Fault(
            lab="18_zero_1",
            old="replaced or self.gradient._version != self.averaged",
            new="replaced",
            told="Zero1 should have refused a backward pass after clipping",
        ),
        Fault(
            lab="18_zero_1",
            old="replaced or self.gradient._version != self.averaged",
            new="self.gradient._version != self.averaged",
            told="Zero1 should have refused a backward pass after clipping, after net.zero_grad()",
        ),
        Fault(lab="18_zero_1", old="ReduceOp.AVG", new="ReduceOp.SUM", told="ZeRO-1, SGD with momentum, 2"),
        run="18_by_hand",
    ),
    *group_of(
        Fault(
            lab="18_torch",
            old="return ddp, optimizer",
            new="return model, optimizer",
            told="Adam, step 0 first.weight: differs by",
        ),
        Fault(
            lab="18_torch",
            old="parameters_as_bucket_view=True",
            new="parameters_as_bucket_view=False",
            told="broadcasts in a step, expected",
        ),
        run="18_equal",
    ),
]
