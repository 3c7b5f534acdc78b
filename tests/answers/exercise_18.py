"""Answers to exercise 18; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

REDUCE = """
for p, owner in owner_of.items():
    gradient = torch.zeros_like(p) if p.grad is None else p.grad
    dist.reduce(gradient, dst=owner)
    if owner == self.rank:
        p.grad = gradient / self.ranks
"""
ALL_REDUCE = """
for p in owner_of:
    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    dist.all_reduce(p.grad)
    p.grad /= self.ranks
"""
SEND = """
for p, owner in owner_of.items():
    dist.broadcast(p, src=owner)
"""

ANSWERS = [
    wrong(
        "All ranks get all averaged gradients.",
        "DDP's all-reduce sends",
        (REDUCE, ALL_REDUCE),
    ),
    wrong(
        "Cuts a flat vector of all parameters, as the lab does: right for Adam, not for any optimizer.",
        "is a parameter cut in pieces?",
        below="""
        class ZeRO1:
            def __init__(self, params: Iterable[nn.Parameter], optimizer_class: type, **options) -> None:
                self.params = [p for p in params if p.requires_grad]
                ranks = dist.get_world_size()
                numel = sum(p.numel() for p in self.params)
                self.flat = self.params[0].new_zeros(numel + -numel % ranks)
                self.gradient = torch.zeros_like(self.flat)
                start = 0
                for p in self.params:
                    end = start + p.numel()
                    self.flat[start:end] = p.detach().flatten()
                    p.data = self.flat[start:end].view_as(p)
                    p.grad = self.gradient[start:end].view_as(p)
                    start = end
                self.part = self.flat.chunk(ranks)[dist.get_rank()]
                self.shard = nn.Parameter(self.part)
                self.optimizer = optimizer_class([self.shard], **options)

            def step(self) -> None:
                self.shard.grad = torch.empty_like(self.part)
                dist.reduce_scatter_tensor(self.shard.grad, self.gradient, op=dist.ReduceOp.AVG)
                self.optimizer.step()
                dist.all_gather_into_tensor(self.flat, self.part)

            def zero_grad(self) -> None:
                self.gradient.zero_()
        """,
    ),
    wrong(
        "Each rank begins to fill itself.",
        "with root 0, rank 1 calls",
        (
            "load.index(min(load))",
            "min(range(self.ranks), key=lambda r: (load[r], (r - self.rank) % self.ranks))",
        ),
    ),
    wrong(
        "The owners keep the new values to themselves.",
        "still has its old value here",
        (SEND, ""),
    ),
    wrong(
        "Averages nothing.",
        "was stepped with this rank's gradient",
        (REDUCE, ""),
    ),
    wrong(
        "Deals the parameters out like cards.",
        "rank 0 keeps",
        partition="return [index % self.ranks for index in range(len(self.params))]",
    ),
    wrong(
        "Leaves out what this rank did not use.",
        "all must make the same calls",
        (
            "gradient = torch.zeros_like(p) if p.grad is None else p.grad",
            """
            if p.grad is None:
                continue
            gradient = p.grad
            """,
        ),
    ),
    wrong(
        "Does not divide by the number of ranks.",
        "was stepped with the sum of the gradients",
        ("gradient / self.ranks", "gradient"),
    ),
    wrong(
        "Each rank steps everything, as with DDP.",
        "of Adam's state; an even share is",
        ("optimizer_class(mine, **options)", "optimizer_class(self.params, **options)"),
        (REDUCE, ALL_REDUCE),
        (SEND, ""),
    ),
    wrong(
        "Counts what no rank used as zeros: weight decay moves it.",
        "has changed, though no rank used it",
        (
            "for p, owner, flag in zip(self.params, self.owner, used, strict=True) if flag",
            "for p, owner in zip(self.params, self.owner, strict=True)",
        ),
    ),
    wrong(
        "Never waits for the broadcasts that it launches.",
        "calls were never waited for",
        ("dist.broadcast(p, src=owner)", "dist.broadcast(p, src=owner, async_op=True)"),
    ),
    right(
        "Gradients and parameters of an owner travel together in one flat tensor, without waiting.",
        step="""
        works = []
        flats = []
        for rank in range(self.ranks):
            owned = [p for p, owner in owner_of.items() if owner == rank]
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in owned]
            flat = torch.cat([part.flatten() for part in parts])
            works.append(dist.reduce(flat, dst=rank, async_op=True))
            flats.append((owned, flat))
        for work in works:
            work.wait()
        owned, flat = flats[self.rank]
        for p, part in zip(owned, flat.split([p.numel() for p in owned]), strict=True):
            p.grad = part.view_as(p) / self.ranks
        self.optimizer.step()
        for rank, (owned, flat) in enumerate(flats):
            if rank == self.rank:
                flat = torch.cat([p.flatten() for p in owned])
            dist.broadcast(flat, src=rank)
            for p, part in zip(owned, flat.split([p.numel() for p in owned]), strict=True):
                p.copy_(part.view_as(p))
        """,
    ),
]
