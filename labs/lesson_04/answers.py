"""Answers to exercise 04."""

from tests.planted import Right, Wrong, solved

ALL_GATHER = solved("04_all_gather", "all_gather")

ANSWERS = [
    Wrong(
        what="The right values without a message of its own.",
        old=ALL_GATHER,
        new="dist.all_gather(pieces, piece)",
        told="the result is right, but it comes from all_gather; use single messages",
    ),
    Wrong(
        what="Rank 0 collects all pieces and sends the whole to everyone.",
        old=ALL_GATHER,
        new="""
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
        told="the result is right, but this rank sent 40,320 bytes in 2 messages",
    ),
    Wrong(
        what="Pieces stand in the order in which they come: my own first.",
        old=ALL_GATHER,
        new="""
        pieces = [piece]
        for _ in range(n - 1):
            incoming = torch.empty_like(piece)
            sendrecv(pieces[-1], right, incoming, left)
            pieces.append(incoming)
        """,
        told="in place 0 lies the piece of rank 1",
    ),
    Wrong(
        what="The result is made without a dtype, and so of torch's default.",
        old="torch.cat(pieces)",
        new="torch.zeros(n * len(piece)).copy_(torch.cat(pieces))",
        told="the result is of torch.float32, the pieces are of torch.float64",
    ),
    Wrong(
        what="Finds its partner by XOR, which takes a power of two.",
        old=ALL_GATHER,
        new="""
        for step in range(1, n):
            partner = rank ^ step
            sendrecv(piece, partner, pieces[partner], partner)
        """,
        told="IndexError: list index out of range",
    ),
    Wrong(
        what="n - 2 steps: the piece of the right neighbour never arrives.",
        old="range(n - 1",
        new="range(n - 2",
        told="numbers were never written: is a step missing?",
    ),
    Wrong(
        what="Right pieces, not put together.",
        old="torch.cat(pieces)",
        new="pieces",
        told="the result is list, expected one tensor of 3 pieces: (2520,)",
    ),
    Wrong(
        what="Starts all sends, then receives: right on gloo, and stuck on nccl (lesson 03).",
        old=ALL_GATHER,
        new="""
        works = [dist.isend(piece, other) for other in range(n) if other != rank]
        for other in range(n):
            if other != rank:
                dist.recv(pieces[other], other)
        for work in works:
            work.wait()
        """,
        told="the result is right on gloo; replayed by nccl's rules, it",
    ),
    Right(
        what="About log2(n) messages of growing size instead of n - 1, as Bruck's algorithm.",
        old=ALL_GATHER,
        new="""
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
]
