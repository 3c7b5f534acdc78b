"""Answers to exercise 20."""

from tests.planted import Right, Wrong, solved

OUT = "out = out * (lse - both).exp().unsqueeze(-1) + more * (more_lse - both).exp().unsqueeze(-1)"
WAIT = """
for work in works:
    work.wait()
"""
MERGED = "out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], more, more_lse)"
HOMEWARD = """
grad_kv, grad_kv_works = to_next_rank(grad_kv)
for work in kv_works + grad_kv_works:
    work.wait()
"""
MERGE = solved("20_ring_attention", "merge")
RING_ATTENTION = solved("20_ring_attention", "ring_attention")
WEIGHTS_OF = solved("20_ring_attention", "weights_of")

ANSWERS = [
    Wrong(
        what="Merges in place.",
        old=OUT,
        new="""
        out *= (lse - both).exp().unsqueeze(-1)
        out += more * (more_lse - both).exp().unsqueeze(-1)
        """,
        told="merge changes out",
    ),
    Wrong(
        what="All keys weigh the same, however large their scores are.",
        old=OUT,
        new="out = (out + more) / 2",
        told="is the mean of the two",
    ),
    Wrong(
        what="The logsumexp of the larger part is taken for that of both.",
        old="out, both",
        new="out, torch.maximum(lse, more_lse)",
        told="is the larger of the two",
    ),
    Wrong(
        what="torch's formula, which never meets a -inf there, as it begins with the first block.",
        old=MERGE,
        new="""
        share = torch.sigmoid(more_lse - lse).unsqueeze(-1)
        both = lse - torch.nn.functional.logsigmoid(lse - more_lse)
        return out - share * (out - more), both
        """,
        told="merge with no keys before: the logsumexp: holds a value that is not finite",
    ),
    Wrong(
        what="All keys and values come to all ranks at once.",
        old="lse = q.new_full(q.shape[:-1], -math.inf)  # no keys yet",
        new="""
        lse = q.new_full(q.shape[:-1], -math.inf)  # no keys yet
        of_all = [torch.stack([k, v]) for _ in range(ranks)]
        dist.all_gather(of_all, of_all[0])
        """,
        told="ring_attention: all_gather is called",
    ),
    Wrong(
        what="Never waits.",
        old=WAIT,
        new="",
        told="sends what it is still receiving: is there a wait?",
    ),
    Wrong(
        what="Waits for what it receives, never for what it sends.",
        old=WAIT,
        new="works[1].wait()",
        told="ring_attention: 2 of 4 sends and receives are never waited for",
    ),
    Wrong(
        what="Waits only when it has computed with the keys.",
        old=RING_ATTENTION,
        new="""
        works = []
        if step > 0:
            kv, works = to_next_rank(kv)
        for rows, columns, diagonal in blocks((rank - step) % ranks, q.shape[-2]):
            part = attend(q[..., rows, :], *kv[..., columns, :], diagonal)
            out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], *part)
        for work in works:
            work.wait()
        """,
        told="is something used before the wait for it?",
    ),
    Wrong(
        what="What arrives is taken for the keys of the rank after.",
        old="""
        source = (rank - step) % ranks
        for rows, columns, diagonal in blocks(source, q.shape[-2]):
        """,
        new="""
        source = (rank + step) % ranks
        for rows, columns, diagonal in blocks(source, q.shape[-2]):
        """,
        told="takes what arrives for another rank's keys",
    ),
    Wrong(
        what="The logsumexp is not merged.",
        old=MERGED,
        new="""
        out[..., rows, :], _ = merge(out[..., rows, :], lse[..., rows], more, more_lse)
        lse[..., rows] = more_lse
        """,
        told="is that of one block alone",
    ),
    Wrong(
        what="The keys go home as well, where nobody needs them.",
        old="last = step == ranks - 1",
        new="last = False",
        told="ring_attention: a rank sends ",
    ),
    Wrong(
        what="Backward, each block has a softmax of its own.",
        old=WEIGHTS_OF,
        new="return scores.softmax(-1)",
        told="add up to 1 over one block",
    ),
    Wrong(
        what="Gradients of keys stay where they are, and the keys go on.",
        old=HOMEWARD,
        new="""
        for work in kv_works:
            work.wait()
        """,
        told="is what our queries give to the keys of all ranks",
    ),
    Wrong(
        what="Gradients go on as often as keys have to, which is once too few.",
        old=HOMEWARD,
        new="""
        for work in kv_works:
            work.wait()
        if step < ranks - 1:
            grad_kv, grad_kv_works = to_next_rank(grad_kv)
            for work in grad_kv_works:
                work.wait()
        """,
        told="it has not come home",
    ),
    Wrong(
        what="Waits for the next keys before it computes with those that it has.",
        old=RING_ATTENTION,
        new="""
        works = []
        incoming = kv
        if step < ranks - 1:
            incoming, works = to_next_rank(kv)
        for work in works:
            work.wait()
        for rows, columns, diagonal in blocks((rank - step) % ranks, q.shape[-2]):
            part = attend(q[..., rows, :], *kv[..., columns, :], diagonal)
            out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], *part)
        kv = incoming
        """,
        told="a rank computes nothing while keys are on their way",
    ),
    Right(
        what="Its blocks in another order, waits in reverse.",
        old=(RING_ATTENTION, WEIGHTS_OF),
        new=(
            """
            source = (rank - step) % ranks
            works = []
            if step < ranks - 1:
                incoming, works = to_next_rank(kv)
            for rows, columns, diagonal in reversed(blocks(source, q.shape[-2])):
                part = attend(q[..., rows, :], kv[0][..., columns, :], kv[1][..., columns, :], diagonal)
                merged = merge(out[..., rows, :], lse[..., rows], *part)
                out[..., rows, :], lse[..., rows] = merged
            for work in reversed(works):
                work.wait()
            if works:
                kv = incoming
            """,
            "return (scores - lse[..., None]).exp()",
        ),
    ),
]
