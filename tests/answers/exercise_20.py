"""Answers to exercise 20; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

OUT = "out = out * (lse - both).exp().unsqueeze(-1) + more * (more_lse - both).exp().unsqueeze(-1)"
WAIT = """
for work in works:
    work.wait()
"""
MERGED = "out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], more, more_lse)"
HOMEWARD = """
of_kv, of_kv_works = to_next_rank(of_kv)
for work in kv_works + of_kv_works:
    work.wait()
"""

ANSWERS = [
    wrong(
        "Merges in place.",
        "merge changes out",
        (
            OUT,
            """
            out *= (lse - both).exp().unsqueeze(-1)
            out += more * (more_lse - both).exp().unsqueeze(-1)
            """,
        ),
    ),
    wrong(
        "All keys weigh the same, however large their scores are.",
        "is the mean of the two",
        (OUT, "out = (out + more) / 2"),
    ),
    wrong(
        "The logsumexp of the larger part is taken for that of both.",
        "is the larger of the two",
        ("out, both", "out, torch.maximum(lse, more_lse)"),
    ),
    wrong(
        "torch's formula, which never meets a -inf there, as it begins with the first block.",
        "merge with no keys before: the logsumexp: holds a value that is not finite",
        merge="""
        share = torch.sigmoid(more_lse - lse).unsqueeze(-1)
        both = lse - torch.nn.functional.logsigmoid(lse - more_lse)
        return out - share * (out - more), both
        """,
    ),
    wrong(
        "The weights are exp of the logsumexps themselves.",
        "merge of scores up to",
        merge="""
        weight, more_weight = lse.exp(), more_lse.exp()
        total = weight + more_weight
        out = (out * weight.unsqueeze(-1) + more * more_weight.unsqueeze(-1)) / total.unsqueeze(-1)
        return out, total.log()
        """,
    ),
    wrong(
        "All keys and values come to all ranks at once.",
        "ring_attention: all_gather is called",
        (
            "lse = q.new_full(q.shape[:-1], -math.inf)  # no keys yet",
            """
            lse = q.new_full(q.shape[:-1], -math.inf)  # no keys yet
            of_all = [torch.stack([k, v]) for _ in range(ranks)]
            dist.all_gather(of_all, of_all[0])
            """,
        ),
    ),
    wrong(
        "Sends to the rank before.",
        "the next one is rank",
        ("tensor, (rank + 1)", "tensor, (rank - 1)"),
        ("incoming, (rank - 1)", "incoming, (rank + 1)"),
    ),
    wrong(
        "Receives into the tensor that it sends.",
        "receives into a tensor that it is still sending",
        ("incoming = torch.empty_like(tensor)", "incoming = tensor"),
    ),
    wrong(
        "Never waits.",
        "sends what it is still receiving: is there a wait?",
        (WAIT, ""),
    ),
    wrong(
        "Waits for what it receives, never for what it sends.",
        "ring_attention: 2 of 4 sends and receives are never waited for",
        (WAIT, "works[1].wait()"),
    ),
    wrong(
        "Waits only when it has computed with the keys.",
        "is something used before the wait for it?",
        ring_attention="""
        works = []
        if step > 0:
            kv, works = to_next_rank(kv)
        for rows, columns, diagonal in blocks((rank - step) % ranks, q.shape[-2]):
            part = attend(q[..., rows, :], *kv[..., columns, :], diagonal)
            out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], *part)
        for work in works:
            work.wait()
        """,
    ),
    wrong(
        "What arrives is taken for the keys of the rank after.",
        "takes what arrives for another rank's keys",
        (
            """
            source = (rank - step) % ranks
            for rows, columns, diagonal in blocks(source, q.shape[-2]):
            """,
            """
            source = (rank + step) % ranks
            for rows, columns, diagonal in blocks(source, q.shape[-2]):
            """,
        ),
    ),
    wrong(
        "The logsumexp is not merged.",
        "is that of one block alone",
        (
            MERGED,
            """
            out[..., rows, :], _ = merge(out[..., rows, :], lse[..., rows], more, more_lse)
            lse[..., rows] = more_lse
            """,
        ),
    ),
    wrong(
        "The keys go home as well, where nobody needs them.",
        "are enough",
        ("last = step == ranks - 1", "last = False"),
    ),
    wrong(
        "Backward, each block has a softmax of its own.",
        "add up to 1 over one block",
        weights_of="return scores.softmax(-1)",
    ),
    wrong(
        "Gradients of keys stay where they are, and the keys go on.",
        "is what our queries give to the keys of all ranks",
        (
            HOMEWARD,
            """
            for work in kv_works:
                work.wait()
            """,
        ),
    ),
    wrong(
        "Gradients go on as often as keys have to, which is once too few.",
        "it has not come home",
        (
            HOMEWARD,
            """
            for work in kv_works:
                work.wait()
            if step < ranks - 1:
                of_kv, of_kv_works = to_next_rank(of_kv)
                for work in of_kv_works:
                    work.wait()
            """,
        ),
    ),
    right(
        "The online softmax as FlashAttention writes it, blocking receives, and backward as in "
        "the lesson's lab: each rank adds its own share at home.",
        merge="""
        highest = torch.maximum(lse, more_lse)
        weight, more_weight = (lse - highest).exp(), (more_lse - highest).exp()
        total = weight + more_weight
        out = (out * weight.unsqueeze(-1) + more * more_weight.unsqueeze(-1)) / total.unsqueeze(-1)
        return out, highest + total.log()
        """,
        to_next_rank="""
        incoming = torch.empty_like(tensor)
        sending = dist.isend(tensor.contiguous(), (rank + 1) % ranks)
        dist.recv(incoming, (rank - 1) % ranks)
        return incoming, [sending]
        """,
        ring_backward="""
        source = (rank - step) % ranks
        share = torch.zeros_like(of_kv)
        add_gradients(source, gradient, q, kv, out, lse, of_q, share)
        if step == 0:
            own, homeward = share, None
        else:
            if homeward is not None:
                incoming, works = homeward
                for work in works:
                    work.wait()
                share += incoming
            homeward = to_next_rank(share)
        if step < ranks - 1:
            kv, works = to_next_rank(kv)
            for work in works:
                work.wait()
        elif homeward is not None:
            incoming, works = homeward
            for work in works:
                work.wait()
            of_kv = own + incoming
        """,
    ),
    right(
        "Its blocks in another order, one masked product for all keys of a rank, and no overlap.",
        ring_attention="""
        source = (rank - step) % ranks
        for rows, columns, diagonal in reversed(blocks(source, q.shape[-2])):
            part = attend(q[..., rows, :], kv[0][..., columns, :], kv[1][..., columns, :], diagonal)
            merged = merge(out[..., rows, :], lse[..., rows], *part)
            out[..., rows, :], lse[..., rows] = merged
        if step < ranks - 1:
            kv, works = to_next_rank(kv)
            for work in works:
                work.wait()
        """,
        weights_of="return (scores - lse[..., None]).exp()",
    ),
]
