"""Answers to exercise 21."""

from tests.planted import Right, Wrong, solved

DISPATCH = solved("21_dispatch", "dispatch")
COMBINE = solved("21_dispatch", "combine")
AVERAGES = solved("21_dispatch", "average_gradients")

ANSWERS = [
    Wrong(
        what="Returns float32.",
        old="weights.unsqueeze(-1)).sum(1)",
        new="weights.unsqueeze(-1)).sum(1).float()",
        told="torch.float32, expected",
    ),
    Wrong(
        what="The weights are detached.",
        old="weights.unsqueeze(-1)",
        new="weights.detach().unsqueeze(-1)",
        told="no backward leads there; combine has to keep them in the graph",
    ),
    Wrong(
        what="Leaves rows in the order of the ranks that sent them.",
        old=("[by_expert]", "[by_expert.argsort()]"),
        new=("", ""),
        told="they are not sorted by expert",
    ),
    Wrong(
        what="Averages gradients over the ranks, as data parallel training does.",
        old="return back,",
        new="return back / dist.get_world_size(),",
        told="the gradient of the tokens is divided by 9",
    ),
    Wrong(
        what="Sends gradients by the counts of forward.",
        old=("sum(ctx.send)", "ctx.send, ctx.receive)"),
        new=("sum(ctx.receive)", "ctx.receive, ctx.send)"),
        told="which way do these rows go?",
    ),
    Wrong(
        what="Sends all tokens to all ranks, and all results back to all.",
        old=(DISPATCH, COMBINE),
        new=(
            """
            longest = torch.tensor(len(tokens))
            dist.all_reduce(longest, op=dist.ReduceOp.MAX)
            length = int(longest)
            every_token = GatherRows.apply(padded(tokens, length))
            every_chosen = GatherRows.apply(padded(chosen, length))
            parts, places = [], []
            for expert in range(dist.get_rank() * here, (dist.get_rank() + 1) * here):
                token, place = (every_chosen == expert).nonzero(as_tuple=True)
                parts.append(every_token[token])
                places.append(token * chosen.shape[1] + place)
            return torch.cat(parts), [len(part) for part in parts], (torch.cat(places), length)
            """,
            """
            places, length = way
            rank, ranks, k = dist.get_rank(), dist.get_world_size(), weights.shape[1]
            boxes = results.new_zeros(length * ranks * k, results.shape[1]).index_copy(0, places, results)
            every_box = GatherRows.apply(boxes).view(ranks, ranks, length, k, -1)
            own = every_box[:, rank].sum(0)[: len(weights)]
            return (own * weights.unsqueeze(-1)).sum(1)
            """,
        ),
        told="; its rows are ",
        below="""
        class GatherRows(torch.autograd.Function):
            @staticmethod
            def forward(ctx, rows: torch.Tensor) -> torch.Tensor:
                whole = rows.new_empty(len(rows) * dist.get_world_size(), *rows.shape[1:])
                dist.all_gather_into_tensor(whole, rows.contiguous())
                return whole

            @staticmethod
            def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
                total = gradient.clone()
                dist.all_reduce(total)
                return total.chunk(dist.get_world_size())[dist.get_rank()]


        def padded(rows: torch.Tensor, length: int) -> torch.Tensor:
            return torch.cat([rows, rows.new_full((length - len(rows), *rows.shape[1:]), -1)])
        """,
    ),
    Wrong(
        what="Takes the counts of its own tokens for those of its experts.",
        old="arriving.sum(0).tolist()",
        new="leaving[dist.get_rank()].tolist()",
        told="dispatch: load is [",
    ),
    Wrong(
        what="Adds up results in the order of the experts.",
        old="[slots.argsort()]",
        new="",
        told="the output: differs",
    ),
    Wrong(
        what="Adds up without weights.",
        old=" * weights.unsqueeze(-1)",
        new="",
        told="is the plain sum of the results",
    ),
    Wrong(
        what="Takes slot s for token s modulo the number of tokens.",
        old="// chosen.shape[1]",
        new="% max(1, len(tokens))",
        told="these rows are not the tokens that chose",
    ),
    Wrong(
        what="Leaves the experts' gradients as they come.",
        old="""
        for gradient in experts:
            gradient.div_(ranks)
        """,
        new="\n",
        told="it is a sum over the rows of all ranks, not divided yet",
    ),
    Wrong(
        what="Averages the experts' gradients over the ranks like all others.",
        old=AVERAGES,
        new="""
        for gradient in [*dense, *experts]:
            dist.all_reduce(gradient)
            gradient.div_(dist.get_world_size())
        """,
        told="is mixed with those of other experts",
    ),
    Wrong(
        what="Does not divide what every rank has.",
        old="""
        dist.all_reduce(gradient)
        gradient.div_(ranks)
        """,
        new="""
        dist.all_reduce(gradient)
        """,
        told="the gradient of what every rank has is",
    ),
    Wrong(
        what="Divides by the ranks of a run with two.",
        old=AVERAGES,
        new="""
        for gradient in dense:
            dist.all_reduce(gradient)
        for gradient in [*dense, *experts]:
            gradient.div_(2)
        """,
        told="the gradient of what every rank has: differs by",
    ),
    Right(
        what="Each row brings the number of its expert in a second exchange.",
        old=(DISPATCH, COMBINE),
        new=(
            """
            slots = chosen.flatten().argsort(stable=True)
            numbers = ExchangeRows.apply(chosen.flatten()[slots].unsqueeze(1), send, receive).squeeze(1)
            by_expert = numbers.argsort(descending=True).flip(0)
            load = (numbers - here * dist.get_rank()).bincount(minlength=here).tolist()
            arrived = ExchangeRows.apply(tokens[slots // chosen.shape[1]], send, receive)
            return arrived[by_expert], load, (slots, send, receive, by_expert)
            """,
            """
            slots, send, receive, by_expert = way
            returned = ExchangeRows.apply(results[by_expert.argsort()], receive, send)
            rows = returned * weights.flatten()[slots].unsqueeze(1)
            output = rows.new_zeros(len(weights), rows.shape[1])
            return output.index_add(0, slots // weights.shape[1], rows)
            """,
        ),
    ),
]
