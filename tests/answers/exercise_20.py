"""Answers to exercise 20; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

OUT = "out = out * (lse - both).exp().unsqueeze(-1) + more * (more_lse - both).exp().unsqueeze(-1)"

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
        "Not causal.",
        "sees all keys, later ones too",
        (
            """
            for columns, key in zip(halves, theirs, strict=True):
                if key <= query:
                    keys, values = kv[0][..., columns, :], kv[1][..., columns, :]
                    more, more_lse = attend(q[..., rows, :], keys, values, key == query)
            """,
            """
            for columns in (slice(0, 2 * half),):
                if True:
                    keys, values = kv[0][..., columns, :], kv[1][..., columns, :]
                    more, more_lse = attend(q[..., rows, :], keys, values, False)
            """,
        ),
    ),
    wrong(
        "All keys and values come to all ranks at once.",
        "all_gather is called",
        (
            "kv = torch.stack([k, v])",
            """
            kv = torch.stack([k, v])
            of_all = [torch.empty_like(kv) for _ in range(ranks)]
            dist.all_gather(of_all, kv)
            """,
        ),
        ("last = step == ranks - 1", "last = True"),
        (
            "kv[0][..., columns, :], kv[1][..., columns, :]",
            "of_all[source][0][..., columns, :], of_all[source][1][..., columns, :]",
        ),
    ),
    wrong(
        "Rank r is taken to hold chunks 2r and 2r + 1.",
        "takes the two chunks for neighbours",
        ("rank, 2 * ranks - 1 - rank)", "2 * rank, 2 * rank + 1)"),
        ("source, 2 * ranks - 1 - source", "2 * source, 2 * source + 1"),
    ),
    wrong(
        "Receives into the tensors that it was given.",
        "ring_attention changes k",
        (
            "kv = incoming",
            """
            kv = incoming
            k.copy_(kv[0])
            """,
        ),
    ),
    wrong(
        "The logsumexp of the larger part is taken for that of both.",
        "is the larger of the two",
        ("out, both", "out, torch.maximum(lse, more_lse)"),
    ),
    wrong(
        "Right, but it computes forbidden blocks, and throws them away.",
        "are enough",
        (
            """
            if key <= query:
                keys, values = kv[0][..., columns, :], kv[1][..., columns, :]
                more, more_lse = attend(q[..., rows, :], keys, values, key == query)
            """,
            """
            keys, values = kv[0][..., columns, :], kv[1][..., columns, :]
            more, more_lse = attend(q[..., rows, :], keys, values, key == query)
            if key <= query:
            """,
        ),
    ),
    wrong(
        "All keys weigh the same, however large their scores are.",
        "is the mean of the two",
        (OUT, "out = (out + more) / 2"),
    ),
    wrong(
        "Within its own chunk a query sees what comes after it.",
        "sees later keys of the query's own chunk",
        ("key == query", "False"),
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
        "The keys go home as well, where nobody needs them.",
        "keys and values, N - 1 times",
        ("step == ranks - 1", "False"),
    ),
    wrong(
        "Sends to the rank before.",
        "the next one is rank",
        ("kv, (rank + 1)", "kv, (rank - 1)"),
        ("incoming, (rank - 1)", "incoming, (rank + 1)"),
        ("rank - step", "rank + step"),
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
        "What arrives is put aside.",
        "is attention to this rank's own keys alone",
        ("kv = incoming", "break"),
    ),
    wrong(
        "The two weights are mixed up.",
        "gives each part the weight of the other one",
        ("out * (lse - both)", "out * (more_lse - both)"),
        ("more * (more_lse - both)", "more * (lse - both)"),
    ),
    right(
        "The online softmax as FlashAttention writes it: maximum, sum and unnormalized output.",
        merge="""
        highest = torch.maximum(lse, more_lse)
        weight, more_weight = (lse - highest).exp(), (more_lse - highest).exp()
        total = weight + more_weight
        out = (out * weight.unsqueeze(-1) + more * more_weight.unsqueeze(-1)) / total.unsqueeze(-1)
        return out, highest + total.log()
        """,
        ring_attention="""
        half = q.shape[-2] // 2
        places = torch.arange(half, device=q.device)
        ours = torch.cat([rank * half + places, (2 * ranks - 1 - rank) * half + places])
        highest = q.new_full(q.shape[:-1], -math.inf)
        total = torch.zeros_like(highest)
        out = torch.zeros_like(q)
        for step in range(ranks):
            source = (rank - step) % ranks
            theirs = torch.cat([source * half + places, (2 * ranks - 1 - source) * half + places])
            rows = slice(half, None) if source > rank else slice(None)
            columns = slice(0, half) if source < rank else slice(None)
            seen = ours[rows].unsqueeze(-1) >= theirs[columns]
            scores = q[..., rows, :] @ k[..., columns, :].transpose(-2, -1) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(~seen, -math.inf)
            higher = torch.maximum(highest[..., rows], scores.amax(-1))
            scale = (highest[..., rows] - higher).exp()
            weights = (scores - higher.unsqueeze(-1)).exp()
            total[..., rows] = total[..., rows] * scale + weights.sum(-1)
            out[..., rows, :] = out[..., rows, :] * scale.unsqueeze(-1) + weights @ v[..., columns, :]
            highest[..., rows] = higher
            if step < ranks - 1:
                kv = torch.stack([k, v])
                incoming = torch.empty_like(kv)
                send = dist.P2POp(dist.isend, kv, (rank + 1) % ranks)
                receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)
                for work in dist.batch_isend_irecv([send, receive]):
                    work.wait()
                k, v = incoming
        return out / total.unsqueeze(-1), highest + total.log()
        """,
    ),
    right(
        "Keys and values travel apart, and the logsumexp is merged by a sigmoid, as in torch.",
        merge="""
        share = torch.sigmoid(more_lse - lse).unsqueeze(-1)
        return out - share * (out - more), torch.logaddexp(lse, more_lse)
        """,
        ring_attention="""
        half = q.shape[-2] // 2
        for step in range(ranks):
            if step == 0:  # our own keys: the diagonal of both chunks, and late queries with early keys
                early = attend(q[..., :half, :], k[..., :half, :], v[..., :half, :], True)
                late = attend(q[..., half:, :], k[..., half:, :], v[..., half:, :], True)
                late = merge(*late, *attend(q[..., half:, :], k[..., :half, :], v[..., :half, :], False))
                out = torch.cat([early[0], late[0]], dim=-2)
                lse = torch.cat([early[1], late[1]], dim=-1)
            elif step <= rank:  # keys of an earlier rank: its early chunk, for all of our queries
                out, lse = merge(out, lse, *attend(q, k[..., :half, :], v[..., :half, :], False))
            else:  # keys of a later rank: both of its chunks, for our late queries
                late = merge(out[..., half:, :], lse[..., half:], *attend(q[..., half:, :], k, v, False))
                out = torch.cat([out[..., :half, :], late[0]], dim=-2)
                lse = torch.cat([lse[..., :half], late[1]], dim=-1)
            if step < ranks - 1:
                arrived = []
                for tensor in (k, v):
                    incoming = torch.empty_like(tensor)
                    sending = dist.isend(tensor.contiguous(), (rank + 1) % ranks)
                    dist.recv(incoming, (rank - 1) % ranks)
                    sending.wait()
                    arrived.append(incoming)
                k, v = arrived
        return out, lse
        """,
    ),
]
