"""Answers to exercise 19."""

from tests.planted import Right, Wrong, solved

AFTER_FORWARD = solved("19_sharded_unit", "after_forward")

ANSWERS = [
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
