"""Answers to exercise 05."""

from tests.planted import Right, Wrong, solved

CROSSING_BYTES = solved("05_reduce_scatter", "crossing_bytes")
RING_REDUCE_SCATTER = solved("05_reduce_scatter", "ring_reduce_scatter")

ANSWERS = [
    Wrong(
        what="The second function is still the stub.",
        old=CROSSING_BYTES,
        new="raise NotImplementedError",
        told="ring_reduce_scatter is right; crossing_bytes is not written yet",
    ),
    Wrong(
        what="Takes the ring's bytes for S.",
        old="math.log2(n) - 2 * (n - 1) / n",
        new="math.log2(n) - 1",
        told="crossing_bytes(4, 2e-05, 1e-09) is 80000; there a ring takes 0.00024 s, doubling 0.0002 s",
    ),
    Wrong(
        what="The sizes that an earlier check asked for, in a table.",
        old=CROSSING_BYTES,
        new="return {2: math.inf, 4: 160_000, 8: 2_200_000, 64: 120e-3 / 4.03125e-9}.get(n, 1.0)",
        told="; there a ring takes",
    ),
    Wrong(
        what="A size of its own for two ranks.",
        old="return math.inf",
        new="return 0",
        told="crossing_bytes(2, 2e-05, 1e-09) is 0; with two ranks doubling never sends more",
    ),
    Wrong(
        what="The last step adds this rank's own chunk once more.",
        old=("for step in range(n - 1):", "return chunks[rank]"),
        new=(
            """
            mine = chunks[rank].clone()
            for step in range(n - 1):
            """,
            "return chunks[rank] + mine",
        ),
        told="are in it 2 times",
    ),
    Wrong(
        what="The right values without a ring.",
        old=RING_REDUCE_SCATTER,
        new="""
        dist.all_reduce(x)
        return chunks[rank]
        """,
        told="the sums are right, but they come from all_reduce; use single messages",
    ),
    Wrong(
        what="A ring that passes the whole tensor on: right sums, n times the traffic.",
        old=RING_REDUCE_SCATTER,
        new="""
        total, passing = x.clone(), x
        for _ in range(n - 1):
            incoming = torch.empty_like(x)
            sendrecv(passing, right, incoming, left)
            total += incoming
            passing = incoming
        return total.tensor_split(n)[rank]
        """,
        told="the sums are right, but 2 messages with 13,440 bytes were sent",
    ),
    Wrong(
        what="Passes chunks on without adding its own.",
        old="target += incoming",
        new="target.copy_(incoming)",
        told="in the first of them the numbers of rank 0 are missing",
    ),
    Wrong(
        what="Returns the whole tensor.",
        old="return chunks[rank]",
        new="return x",
        told="the result is (840,), expected one chunk of 280 elements",
    ),
    Wrong(
        what="Each chunk goes straight to the rank that needs it.",
        old=RING_REDUCE_SCATTER,
        new="""
        total = chunks[rank].clone()
        for distance in range(1, n):
            incoming = torch.empty_like(total)
            sendrecv(chunks[(rank + distance) % n], (rank + distance) % n, incoming, (rank - distance) % n)
            total += incoming
        return total
        """,
        told="a message went to another rank than the right neighbour",
    ),
    Wrong(
        what="The first half of the ring all-reduce as it stands there: the ranks end with another chunk.",
        old=("(rank - step - 1) % n], chunks[(rank - step - 2) % n]", "return chunks[rank]"),
        new=("(rank - step) % n], chunks[(rank - step - 1) % n]", "return chunks[(rank + 1) % n]"),
        told="returns chunk 1, complete; expected is chunk 0",
    ),
    Wrong(
        what="The loop of the ring all-reduce, and the chunk that it leaves incomplete here.",
        old="(rank - step - 1) % n], chunks[(rank - step - 2) % n]",
        new="(rank - step) % n], chunks[(rank - step - 1) % n]",
        told="returns a chunk that is not complete, but its chunk 1 is; begin the loop",
    ),
    Wrong(
        what="Counts the ranks of this run by hand.",
        old="range(n - 1)",
        new="range(2)",
        told="on 2 of the 3 ranks: ",
    ),
    Wrong(
        what="Sums in float32, whatever the dtype.",
        old=("chunks = x.tensor_split(n)", "return chunks[rank]"),
        new=("chunks = x.float().tensor_split(n)", "return chunks[rank].to(x.dtype)"),
        told="sums are right to float32 alone; keep the dtype of x",
    ),
    Right(
        what="A barrier after each step.",
        old="""
        target += incoming
        """,
        new="""
        target += incoming
        dist.barrier()
        """,
    ),
    Right(
        what="Blocking calls only: even ranks send first, odd ranks and the last one receive first.",
        old="sendrecv(outgoing, right, incoming, left)",
        new="""
        if rank % 2 == 0 and rank < n - 1:
            dist.send(outgoing, right)
            dist.recv(incoming, left)
        else:
            dist.recv(incoming, left)
            dist.send(outgoing, right)
        """,
    ),
]
