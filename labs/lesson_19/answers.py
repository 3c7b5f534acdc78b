"""Answers to exercise 19."""

from tests.planted import Right, Wrong, solved

AFTER_FORWARD = solved("19_sharded", "after_forward")

LOAD = """
set_model_state_dict(model, first, options=options)
"""

ANSWERS = [
    Wrong(
        what="Leaves the script as it is: DDP.",
        below="""
        def prepare(build):
            device = "cpu" if dist.get_backend() == "gloo" else "cuda"
            model = nn.parallel.DistributedDataParallel(build().to(device))
            return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
        """,
        told="has built the whole model",
    ),
    Wrong(
        what="Forgets the root.",
        old="    fully_shard(model)\n",
        new="",
        told="is in no unit: each rank would train a copy of its own",
    ),
    Wrong(
        what="Makes the root the only unit.",
        old="fully_shard(block)",
        new="pass",
        told="block 0 is no unit",
    ),
    Wrong(
        what="Each rank loads the shard of a model of its own.",
        old=LOAD,
        new="""
        with torch.no_grad():
            for p in model.parameters():
                nn.init.normal_(p.to_local())
        """,
        told="does not begin with the values of rank 0",
    ),
    Wrong(
        what="Leaves the buffers as to_empty made them.",
        old="    model.fill_buffers()\n",
        new="    model.table.fill_(0)\n",
        told="the table of positions has other values",
    ),
    Wrong(
        what="Reduces in each micro-batch, as no_sync() does nothing here.",
        old="        model.set_requires_gradient_sync(last)\n",
        new="",
        told="only the last micro-batch sends gradients",
    ),
    Wrong(
        what="Each rank evaluates its own batches, and rank 0 has one more.",
        old="range(int(most))",
        new="range(len(batches))",
        told="stuck: it waited",
    ),
    Wrong(
        what="Counts the batches that only keep the ranks together.",
        old="if number < len(batches):",
        new="if True:",
        told="evaluate returns",
    ),
    Wrong(
        what="Rank 0 writes what it has.",
        old="whole = get_model_state_dict(model, options=options)",
        new="whole = model.state_dict()",
        told="the file has only rank 0's shard",
    ),
    Wrong(
        what="Its shard is a view, which keeps the whole alive.",
        old="self.whole.chunk(self.ranks)[dist.get_rank()].clone()",
        new="self.whole.clone().chunk(self.ranks)[dist.get_rank()]",
        told="it is a view",
    ),
    Wrong(
        what="Reduces the whole gradient and takes its part.",
        old="""
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, gradient)
        """,
        new="""
        dist.all_reduce(gradient)
        mean = gradient.chunk(self.ranks)[dist.get_rank()].clone()
        """,
        told="'all_reduce': 3",
    ),
    Wrong(
        what="Sends in float32, whatever the dtype.",
        old="""
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, gradient)
        mean /= self.ranks
        """,
        new="""
        mean = torch.empty_like(self.shard, dtype=torch.float32)
        dist.reduce_scatter_tensor(mean, gradient.float())
        mean = (mean / self.ranks).to(self.shard.dtype)
        """,
        told="that is the rounding of float32",
    ),
    Wrong(
        what="Leaves the whole gradients where they are.",
        old="p.grad = None",
        new="",
        told="still has its whole gradient",
    ),
    Wrong(
        what="Frees only after backward.",
        old=AFTER_FORWARD,
        new="""
        if output.requires_grad:
            output.register_hook(self.before_backward)
        """,
        told="after forward,",
    ),
    Wrong(
        what="Gathers into new memory, which autograd does not know.",
        old="self.whole.untyped_storage().resize_(self.whole.nbytes)",
        new="""
        self.whole = self.shard.new_empty(self.ranks * len(self.shard))
        parts = self.whole[: sum(self.sizes)].split(self.sizes)
        for p, part in zip(self.params, parts, strict=True):
            p.data = part.view(p.shape)
        """,
        told="autograd points there",
    ),
    Wrong(
        what="Forgets the gradient of the backward before.",
        old="self.shard.grad += mean",
        new="self.shard.grad = mean",
        told="step 1, unit 0: gradient of the shard",
    ),
    Wrong(
        what="Its gradient is a view of the whole gradient.",
        old="""
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, gradient)
        """,
        new="""
        mean = gradient.chunk(self.ranks)[dist.get_rank()]
        dist.reduce_scatter_tensor(mean, gradient.clone())
        """,
        told="the gradient of the shard keeps",
    ),
    Wrong(
        what="Registers the hook in an evaluation, too.",
        old=AFTER_FORWARD,
        new="""
        self.reshard()
        output.register_hook(self.before_backward)
        """,
        told="under torch.no_grad(): cannot register a hook",
    ),
    Wrong(
        what="Has no padding: the last elements are in no shard.",
        old=".chunk(self.ranks)[dist.get_rank()]",
        new="[dist.get_rank() * (numel // self.ranks) :][: numel // self.ranks]",
        told="elements, expected",
    ),
    Wrong(
        what="Does not divide by the number of ranks.",
        old="mean /= self.ranks",
        new="",
        told="it is the sum over the ranks",
    ),
    Wrong(
        what="Keeps a copy of the whole for itself.",
        old="dist.all_gather_into_tensor(self.whole, self.shard.detach())",
        new="""
        dist.all_gather_into_tensor(self.whole, self.shard.detach())
        self.cache = self.whole.clone()
        """,
        told="bytes beside its shard: a whole copy",
    ),
    Wrong(
        what="Divides by the ranks of a run with two.",
        old="mean /= self.ranks",
        new="mean /= 2",
        told="step 0, unit 0: gradient of the shard: differs by",
    ),
    Right(
        what="Only the script: the second half is not started.",
        old=solved("19_sharded", "after_forward"),
        new="raise NotImplementedError",
    ),
    Right(
        what="Its shard is a plain tensor.",
        old="nn.Parameter(self.whole.chunk(self.ranks)[dist.get_rank()].clone())",
        new="self.whole.chunk(self.ranks)[dist.get_rank()].clone()",
    ),
    Right(
        what="Lists of shards, and the mean by the collective itself.",
        old=(
            "all_gather_into_tensor(self.whole",
            "reduce_scatter_tensor(mean, gradient)",
            "mean /= self.ranks",
        ),
        new=(
            "all_gather(list(self.whole.chunk(self.ranks))",
            "reduce_scatter(mean, list(gradient.chunk(self.ranks)), dist.ReduceOp.AVG)",
            "",
        ),
    ),
]
