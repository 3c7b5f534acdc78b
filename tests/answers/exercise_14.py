"""Answers to exercise 14; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Adds up the codes, as if all ranks had the same scale and int8 could hold the sum.",
        "of the largest number; int8 allows",
        average="""
        parts = (gradient + self.residual)[None]
        codes, scales = quantize(parts)
        self.residual = (parts - codes * scales)[0]
        dist.all_reduce(codes)
        return (codes * scales)[0] / dist.get_world_size()
        """,
    ),
    wrong(
        "Sends all codes to all ranks: with two that costs no more, with three it does.",
        "one byte a number, sent twice at most",
        average="""
        ranks = dist.get_world_size()
        parts = (gradient + self.residual)[None]
        codes, scales = quantize(parts)
        self.residual = (parts - codes * scales)[0]
        all_codes = codes.new_empty(ranks, len(gradient))
        dist.all_gather_into_tensor(all_codes, codes)
        all_scales = scales.new_empty(ranks, 1)
        dist.all_gather_into_tensor(all_scales, scales)
        return (all_codes * all_scales).sum(0) / ranks
        """,
    ),
    wrong(
        "Sends the largest numbers, as the lesson's first lab does.",
        "the first mean is off by",
        average="""
        ranks = dist.get_world_size()
        corrected = gradient + self.residual
        places = corrected.abs().topk(len(gradient) // (6 * ranks)).indices
        values = corrected[places]
        self.residual = corrected.index_fill(0, places, 0)
        all_values = values.new_empty(ranks * len(places))
        dist.all_gather_into_tensor(all_values, values)
        all_places = torch.empty(ranks * len(places), dtype=torch.int32, device=values.device)
        dist.all_gather_into_tensor(all_places, places.int())
        total = torch.zeros_like(gradient)
        for theirs, where in zip(all_values.chunk(ranks), all_places.chunk(ranks), strict=True):
            total[where] += theirs
        return total / ranks
        """,
    ),
    wrong(
        "Forgets what the second rounding loses.",
        "do not add up to what was given: off by",
        ("residual[rank] += (total - code * scale)[0]", ""),
    ),
    wrong(
        "Keeps nothing.",
        "the residual stays as it was: what is rounded off is lost",
        ("self.residual = residual.flatten()", ""),
    ),
    wrong(
        "Adds the residual to the gradient itself.",
        "average changes the gradient that it is given",
        ("(gradient + self.residual)", "gradient.add_(self.residual)"),
    ),
    wrong(
        "Knows its own part better than the others do.",
        "the mean that comes back: ranks [1, 2] differ from rank 0",
        (
            "return (all_codes * all_scales).flatten() / ranks",
            "return (all_codes * all_scales).index_copy(0, torch.tensor([rank]), total).flatten() / ranks",
        ),
    ),
    wrong(
        "Does not divide.",
        "average returns the sum over the ranks, not the mean",
        (".flatten() / ranks", ".flatten()"),
    ),
    wrong(
        "Sends float64.",
        "this rank has to send 8,992 bytes in a step of 3 ranks",
        ("codes, scales = quantize(parts)", "codes, scales = parts, torch.ones_like(parts[:, :1])"),
        ("code, scale = quantize(total)", "code, scale = total, torch.ones_like(total[:, :1])"),
    ),
    wrong(
        "Changes the residual, but does not return the mean.",
        "the mean is NoneType, not a tensor",
        ("return (all_codes", "_ = (all_codes"),
    ),
    right(
        "One scale for all parts.",
        ("codes, scales = quantize(parts)", "codes, scales = (x.view(-1, y) for x, y in WHOLE(parts))"),
        below="""
        def WHOLE(parts):
            codes, scale = quantize(parts.reshape(1, -1))
            return (codes, parts.shape[1]), (scale.expand(len(parts), 1).contiguous(), 1)
        """,
    ),
    right(
        "Parts go by messages instead of an all-to-all.",
        ("dist.all_to_all_single(arrived, codes)", "by_messages(arrived, codes)"),
        below="""
        def by_messages(arrived, codes):
            rank = dist.get_rank()
            arrived[rank] = codes[rank]
            work = []
            for other in range(dist.get_world_size()):
                if other != rank:
                    work.append(dist.P2POp(dist.isend, codes[other], other))
                    work.append(dist.P2POp(dist.irecv, arrived[other], other))
            for one in dist.batch_isend_irecv(work) if work else []:
                one.wait()
        """,
    ),
]
