"""Planted faults of lesson 18; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("18_zero_1", "        self.gather_parameters()\n", "", "the ranks have different parameters"),
    Fault(
        "18_zero_1",
        "        dist.broadcast(self.flat, group=group, group_src=0)\n",
        "",
        "Zero1 in a script, optimizer.zero_grad(), step 0:",
        run="18_by_hand",
    ),
    Fault(
        "18_zero_1",
        "elif p.grad.data_ptr() != place.data_ptr()",
        "elif False",
        "Zero1 in a script, model.zero_grad(), step 0:",
        run="18_by_hand",
    ),
    Fault(
        "18_zero_1",
        "dist.all_reduce(square, group=self.group)",
        "pass",
        "step 0: norm: differs by",
        run="18_by_hand",
    ),
    Fault(
        "18_zero_1",
        "if [p.data_ptr() for p in self.params] != self.addresses",
        "if False",
        "Zero1 was to refuse",
        run="18_by_hand",
    ),
    Fault("18_zero_1", "ReduceOp.AVG", "ReduceOp.SUM", "ZeRO-1, SGD with momentum, 2", run="18_by_hand"),
    Fault(
        "18_zero_1",
        '[p for p in param_group["params"] if p.requires_grad]',
        'list(param_group["params"])',
        "all-reduce: gradients 1.25 S",
        run="18_by_hand",
    ),
    Fault(
        "18_by_hand",
        "        mean = torch.empty_like(shard)\n",
        "        mean = torch.zeros_like(self.padded(p.grad)).chunk(self.ranks)[0]\n",
        "ZeRO-2: gradients 1.00 S",
    ),
    Fault("18_by_hand", "shard.grad += mean", "shard.grad = mean", "ZeRO-2, Adam, 1 ranks, step 0"),
    Fault(
        "18_by_hand",
        '"ZeRO-1": (Zero1, 2, 3)',
        '"ZeRO-1": (AllReduced, 2, 3)',
        "ZeRO-1: 3.00 halves of an all-reduce by rule",
    ),
    Fault("18_by_hand", "ring_all_gather(self.flat, self.ranks)", "pass", "ZeRO-1 on rings, SGD"),
    Fault("18_memory", "int(way[-1])", "1", "ZeRO-2, 2 ranks: gradients"),
    Fault(
        "18_memory",
        "net.parameters(), torch.optim.Adam, int",
        "list(net.parameters())[:2], torch.optim.Adam, int",
        "ZeRO-1, 1 ranks: state",
    ),
    Fault("18_memory", '"torch\'s ZeRO-1": 3', '"torch\'s ZeRO-1": 2', "torch's ZeRO-1, 2 ranks: sent"),
    Fault("18_equal", "/ ranks).backward()", ").backward()", "differs by"),
    Fault("18_faults", "    shards.send_bucket = lambda *_: None\n", "", "nobody sends: green"),
    Fault(
        "18_faults",
        "optimizer.clip_grad_norm_(1e9)",
        "nn.utils.clip_grad_norm_(net.parameters(), 1e9)",
        "another norm",
    ),
    Fault(
        "18_equal",
        "torch.optim.Muon([shards]",
        "torch.optim.Muon([nn.Parameter(weight)]",
        "Muon on FSDP2 is off",
    ),
    Fault("18_faults", "stage=2", "stage=1", "stage 2 inside DDP was to be refused"),
]
