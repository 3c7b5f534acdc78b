"""Answers to exercise 14."""

from tests.planted import Right, Wrong, solved

AVERAGE = solved("14_int8_mean", "average")

ANSWERS = [
    Wrong(
        what="Adds up the codes, as if all ranks had the same scale and int8 could hold the sum.",
        old=AVERAGE,
        new="""
        parts = (gradient + self.residual)[None]
        codes, scales = quantize(parts)
        self.residual = (parts - codes * scales)[0]
        dist.all_reduce(codes)
        return (codes * scales)[0] / dist.get_world_size()
        """,
        told="of the largest number; int8 allows",
    ),
    Wrong(
        what="Sends all codes to all ranks: with two that costs no more, with three it does.",
        old=AVERAGE,
        new="""
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
        told="one byte a number, sent twice at most",
    ),
    Wrong(
        what="Forgets what the second rounding loses.",
        old="residual[rank] += (total - code * scale)[0]",
        new="",
        told="do not add up to what was given: off by",
    ),
    Wrong(
        what="Keeps nothing.",
        old="self.residual = residual.flatten()",
        new="",
        told="the residual stays as it was: what is rounded off is lost",
    ),
    Wrong(
        what="Adds the residual to the gradient itself.",
        old="(gradient + self.residual)",
        new="gradient.add_(self.residual)",
        told="average changes the gradient that it is given",
    ),
    Wrong(
        what="Knows its own part better than the others do.",
        old="return (all_codes * all_scales).flatten() / ranks",
        new="return (all_codes * all_scales).index_copy(0, torch.tensor([rank]), total).flatten() / ranks",
        told="the mean that comes back: ranks [1, 2] differ from rank 0",
    ),
    Wrong(
        what="Does not divide.",
        old=".flatten() / ranks",
        new=".flatten()",
        told="average returns the sum over the ranks, not the mean",
    ),
    Wrong(
        what="Changes the residual, but does not return the mean.",
        old="return (all_codes",
        new="_ = (all_codes",
        told="the mean is NoneType, not a tensor",
    ),
    Right(
        what="Parts go by messages instead of an all-to-all.",
        old="dist.all_to_all_single(arrived, codes)",
        new="by_messages(arrived, codes)",
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
