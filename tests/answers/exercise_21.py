"""Answers to exercise 21; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "The weights are detached.",
        "gradient of the weights is missing: no backward leads there; combine has to keep them in the graph",
        ("weights.unsqueeze(-1)", "weights.detach().unsqueeze(-1)"),
    ),
    wrong(
        "Leaves rows in the order of the ranks that sent them.",
        "they are not sorted by expert",
        ("[by_expert]", ""),
        ("[by_expert.argsort()]", ""),
    ),
    wrong(
        "Averages gradients over the ranks, as data parallel training does.",
        "the gradient of the tokens is divided by 9",
        ("return back,", "return back / dist.get_world_size(),"),
    ),
    wrong(
        "Sends gradients by the counts of forward.",
        "which way do these rows go?",
        ("sum(ctx.send)", "sum(ctx.receive)"),
        ("ctx.send, ctx.receive)", "ctx.receive, ctx.send)"),
    ),
    wrong(
        "Sends all tokens to all ranks, and all results back to all.",
        "bytes by",
        dispatch="""
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
        combine="""
        places, length = way
        rank, ranks, k = dist.get_rank(), dist.get_world_size(), weights.shape[1]
        boxes = results.new_zeros(length * ranks * k, results.shape[1]).index_copy(0, places, results)
        every_box = GatherRows.apply(boxes).view(ranks, ranks, length, k, -1)
        own = every_box[:, rank].sum(0)[: len(weights)]
        return (own * weights.unsqueeze(-1)).sum(1)
        """,
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
    wrong(
        "A rank without tokens has nothing to send.",
        "calls nothing more",
        (
            "slots = chosen.flatten().argsort(stable=True)",
            """
            if len(tokens) == 0:
                return tokens, [0] * here, None
            slots = chosen.flatten().argsort(stable=True)
            """,
        ),
        (
            "slots, send, receive, by_expert = way",
            """
            if way is None:
                return results
            slots, send, receive, by_expert = way
            """,
        ),
    ),
    wrong(
        "Takes the counts of its own tokens for those of its experts.",
        "load is [",
        ("arriving.sum(0).tolist()", "leaving[dist.get_rank()].tolist()"),
    ),
    wrong(
        "Takes the mean of the weighted results.",
        "is divided by 2",
        ("weights.unsqueeze(-1)).sum(1)", "weights.unsqueeze(-1)).mean(1)"),
    ),
    wrong(
        "Exchanges rows by a function that autograd cannot see.",
        "is missing: no backward leads there; does each exchange have one?",
        below="""
        class ExchangeRows:
            @staticmethod
            def apply(rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
                received = rows.new_empty(sum(receive), *rows.shape[1:])
                dist.all_to_all_single(received, rows.detach().contiguous(), receive, send)
                return received
        """,
    ),
    wrong(
        "Adds up results in the order of the experts.",
        "the output: differs",
        ("[slots.argsort()]", ""),
    ),
    wrong(
        "Adds up without weights.",
        "is the plain sum of the results",
        (" * weights.unsqueeze(-1)", ""),
    ),
    wrong(
        "Takes slot s for token s modulo the number of tokens.",
        "these rows are not the tokens that chose",
        ("// chosen.shape[1]", "% max(1, len(tokens))"),
    ),
    right(
        "torch's own functional exchange, which has a backward.",
        below="""
        import torch.distributed._functional_collectives as functional


        class ExchangeRows:
            @staticmethod
            def apply(rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
                return functional.all_to_all_single_autograd(rows, receive, send, dist.group.WORLD)
        """,
    ),
    right(
        "Each row brings the number of its expert in a second exchange; results are added up one by one.",
        dispatch="""
        slots = chosen.flatten().argsort(stable=True)
        send, receive = leaving.sum(1).tolist(), arriving.sum(1).tolist()
        numbers = ExchangeRows.apply(chosen.flatten()[slots].unsqueeze(1), send, receive).squeeze(1)
        by_expert = numbers.argsort(descending=True).flip(0)
        load = (numbers - here * dist.get_rank()).bincount(minlength=here).tolist()
        arrived = ExchangeRows.apply(tokens[slots // chosen.shape[1]], send, receive)
        return arrived[by_expert], load, (slots, send, receive, by_expert)
        """,
        combine="""
        slots, send, receive, by_expert = way
        returned = ExchangeRows.apply(results[by_expert.argsort()], receive, send)
        rows = returned * weights.flatten()[slots].unsqueeze(1)
        output = rows.new_zeros(len(weights), rows.shape[1])
        return output.index_add(0, slots // weights.shape[1], rows)
        """,
    ),
]
