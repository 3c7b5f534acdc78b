"""Answers to exercise 19; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Its shard is a view, which keeps the whole alive.",
        "it is a view",
        (
            "self.whole.chunk(self.ranks)[dist.get_rank()].clone()",
            "self.whole.clone().chunk(self.ranks)[dist.get_rank()]",
        ),
    ),
    wrong(
        "Reduces the whole gradient and takes its part.",
        "'all_reduce': 3",
        (
            """
            mean = torch.empty_like(self.shard)
            dist.reduce_scatter_tensor(mean, gradient)
            """,
            """
            dist.all_reduce(gradient)
            mean = gradient.chunk(self.ranks)[dist.get_rank()].clone()
            """,
        ),
    ),
    wrong(
        "Sends in float32, whatever the dtype.",
        "that is the rounding of float32",
        (
            """
            mean = torch.empty_like(self.shard)
            dist.reduce_scatter_tensor(mean, gradient)
            mean /= self.ranks
            """,
            """
            mean = torch.empty_like(self.shard, dtype=torch.float32)
            dist.reduce_scatter_tensor(mean, gradient.float())
            mean = (mean / self.ranks).to(self.shard.dtype)
            """,
        ),
    ),
    wrong(
        "Leaves the whole gradients where they are.",
        "still has its whole gradient",
        ("p.grad = None", ""),
    ),
    wrong(
        "Frees only after backward.",
        "after forward,",
        after_forward="output.register_hook(self.before_backward)",
    ),
    wrong(
        "Gathers into new memory, which autograd does not know.",
        "autograd points there",
        (
            "self.whole.untyped_storage().resize_(self.whole.nbytes)",
            """
            self.whole = self.shard.new_empty(self.ranks * len(self.shard))
            parts = self.whole[: sum(self.sizes)].split(self.sizes)
            for p, part in zip(self.params, parts, strict=True):
                p.data = part.view(p.shape)
            """,
        ),
    ),
    wrong(
        "Does not unshard in backward.",
        "still empty",
        ("output.register_hook(self.before_backward)", ""),
    ),
    wrong(
        "Forgets the gradient of the backward before.",
        "step 1, unit 0: gradient of the shard",
        ("self.shard.grad += mean", "self.shard.grad = mean"),
    ),
    wrong(
        "Has no padding: the last elements are in no shard.",
        "elements, expected",
        (
            ".chunk(self.ranks)[dist.get_rank()]",
            "[dist.get_rank() * (numel // self.ranks) :][: numel // self.ranks]",
        ),
    ),
    wrong(
        "Does not divide by the number of ranks.",
        "it is the sum over the ranks",
        ("mean /= self.ranks", ""),
    ),
    wrong(
        "Keeps a copy of the whole for itself.",
        "bytes beside its shard: a whole copy",
        (
            "dist.all_gather_into_tensor(self.whole, self.shard.detach())",
            """
            dist.all_gather_into_tensor(self.whole, self.shard.detach())
            self.cache = self.whole.clone()
            """,
        ),
    ),
    wrong(
        "Takes the first parameter's gradient for the last to come.",
        "'NoneType' object has no attribute 'flatten'",
        ("if any(p.grad is None for p in self.params):", "if p is not self.params[0]:"),
    ),
    right(
        "Lists of shards, and the mean by the collective itself.",
        ("all_gather_into_tensor(self.whole", "all_gather(list(self.whole.chunk(self.ranks))"),
        (
            "reduce_scatter_tensor(mean, gradient)",
            "reduce_scatter(mean, list(gradient.chunk(self.ranks)), dist.ReduceOp.AVG)",
        ),
        ("mean /= self.ranks", ""),
    ),
]
