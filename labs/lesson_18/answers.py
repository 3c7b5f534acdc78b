"""Answers to exercise 18."""

from tests.planted import Right, Wrong, solved

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
STEP = solved("18_zero_1", "step")

ANSWERS = [
    Wrong(
        what="Reduces in float32.",
        old=(
            "gradient = torch.zeros_like(p) if p.grad is None else p.grad",
            "p.grad = gradient / self.ranks",
        ),
        new=(
            "gradient = torch.zeros_like(p).float() if p.grad is None else p.grad.float()",
            "p.grad = (gradient / self.ranks).to(p.dtype)",
        ),
        told="is right to float32 alone",
    ),
    Wrong(
        what="All ranks get all averaged gradients.",
        old=REDUCE,
        new=ALL_REDUCE,
        told="DDP's all-reduce sends",
    ),
    Wrong(
        what="Cuts a flat vector of all parameters, as the lab does: right for Adam, not for any optimizer.",
        told="is a parameter cut in pieces?",
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
    Wrong(
        what="The owners keep the new values to themselves.",
        old=SEND,
        new="",
        told="still has its old value here",
    ),
    Wrong(
        what="Averages nothing.",
        old=REDUCE,
        new="",
        told="was stepped with this rank's gradient",
    ),
    Wrong(
        what="Leaves out what this rank did not use.",
        old="gradient = torch.zeros_like(p) if p.grad is None else p.grad",
        new="""
        if p.grad is None:
            continue
        gradient = p.grad
        """,
        told="all must make the same calls",
    ),
    Wrong(
        what="Does not divide by the number of ranks.",
        old="gradient / self.ranks",
        new="gradient",
        told="was stepped with the sum of the gradients",
    ),
    Wrong(
        what="Divides by the number of ranks that used the parameter.",
        old=(
            "gradient = torch.zeros_like(p) if p.grad is None else p.grad",
            "gradient / self.ranks",
        ),
        new=(
            """
            users = torch.tensor(float(p.grad is not None), device=p.device)
            dist.all_reduce(users)
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            """,
            "gradient / users.item()",
        ),
        told="was stepped with the mean over the ranks that used it",
    ),
    Wrong(
        what="Gives out the parameters in their order, not the largest first.",
        old="sorted(range(len(self.params)), key=lambda i: self.params[i].nbytes, reverse=True)",
        new="range(len(self.params))",
        told="in which order were the parameters given out?",
    ),
    Wrong(
        what="Each rank steps everything, as with DDP.",
        old=("optimizer_class(mine, **options)", REDUCE, SEND),
        new=("optimizer_class(self.params, **options)", ALL_REDUCE, ""),
        told="of Adam's state; an even share is",
    ),
    Wrong(
        what="Counts what no rank used as zeros: weight decay moves it.",
        old="for p, owner, flag in zip(self.params, self.owner, used, strict=True) if flag",
        new="for p, owner in zip(self.params, self.owner, strict=True)",
        told="has changed, though no rank used it",
    ),
    Wrong(
        what="Never waits for the broadcasts that it launches.",
        old="dist.broadcast(p, src=owner)",
        new="dist.broadcast(p, src=owner, async_op=True)",
        told="calls were never waited for",
    ),
    Right(
        what="Gradients and parameters of an owner travel together in one flat tensor, without waiting.",
        old=STEP,
        new="""
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
