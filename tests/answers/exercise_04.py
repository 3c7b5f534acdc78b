"""Answers to exercise 04; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "The right values without a message of its own.",
        "the result is right, but it comes from all_gather; use single messages",
        all_gather="dist.all_gather(pieces, piece)",
    ),
    wrong(
        "Rank 0 collects all pieces and sends the whole to everyone.",
        "the result is right, but this rank sent 40,320 bytes in 2 message(s)",
        all_gather="""
        whole = piece.repeat(n)
        if rank == 0:
            for other in range(1, n):
                dist.recv(whole.chunk(n)[other], other)
            for other in range(1, n):
                dist.send(whole, other)
        else:
            dist.send(piece, 0)
            dist.recv(whole, 0)
        return whole
        """,
    ),
    wrong(
        "The collective does the work; messages that nobody needs bring the bytes to the target.",
        "the result is right, but it comes from all_gather",
        all_gather="""
        dist.all_gather(pieces, piece)
        for _ in range(n - 1):
            sendrecv(piece, right, torch.empty_like(piece), left)
        """,
    ),
    wrong(
        "Pieces stand in the order in which they come: my own first.",
        "in place 0 lies the piece of rank 1",
        all_gather="""
        pieces = [piece]
        for _ in range(n - 1):
            incoming = torch.empty_like(piece)
            sendrecv(pieces[-1], right, incoming, left)
            pieces.append(incoming)
        """,
    ),
    wrong(
        "The result is made without a dtype, and so of torch's default.",
        "the result is of torch.float32, the pieces are of torch.float64",
        ("torch.cat(pieces)", "torch.zeros(n * len(piece)).copy_(torch.cat(pieces))"),
    ),
    wrong(
        "n - 2 steps: the piece of the right neighbour never arrives.",
        "numbers were never written: is a step missing?",
        ("range(n - 1", "range(n - 2"),
    ),
    wrong(
        "A ring in which each message holds everything that has come so far.",
        "the result is right, but this rank sent 20,160 bytes in 2 message(s)",
        all_gather="""
        have = piece
        for step in range(n - 1):  # own piece last
            incoming = torch.empty((step + 1) * len(piece), dtype=piece.dtype)
            sendrecv(have, right, incoming, left)
            have = torch.cat([incoming, piece])
        pieces = [have.chunk(n)[(place - rank - 1) % n] for place in range(n)]
        """,
    ),
    wrong(
        "Right pieces, not put together.",
        "the result is list, expected one tensor of 3 pieces: (2520,)",
        ("torch.cat(pieces)", "pieces"),
    ),
    wrong(
        "Every rank waits until its piece is taken, and none takes one.",
        "stuck: it waited 10 s for a message that did not come",
        (
            "sendrecv(pieces[(rank - step) % n], right, pieces[(rank - step - 1) % n], left)",
            """
            dist.send(pieces[(rank - step) % n], right)
            dist.recv(pieces[(rank - step - 1) % n], left)
            """,
        ),
    ),
    wrong(
        "Nobody passes on what came: each neighbour's piece arrives n - 1 times.",
        "in place 1 lies the piece of rank 2",
        ("pieces[(rank - step) % n]", "piece"),
    ),
    right(
        "About log2(n) messages of growing size instead of n - 1, with the same bytes (Bruck's algorithm).",
        all_gather="""
        have = piece.clone()  # the pieces of ranks rank, rank + 1, ...
        count = 1
        while count < n:
            more = min(count, n - count)
            incoming = piece.new_empty(more * len(piece))
            sendrecv(have[: more * len(piece)].clone(), (rank - count) % n, incoming, (rank + count) % n)
            have = torch.cat([have, incoming])
            count += more
        return have.roll(rank * len(piece))
        """,
    ),
    right(
        "No ring: each rank sends its own piece to every other, all at once.",
        all_gather="""
        whole = piece.repeat(n)
        pieces = whole.chunk(n)
        works = []
        for other in range(n):
            if other != rank:
                works.append(dist.isend(piece, other))
                works.append(dist.irecv(pieces[other], other))
        for work in works:
            work.wait()
        return whole
        """,
    ),
]
