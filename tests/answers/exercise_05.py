"""Answers to exercise 05; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "The second function is still the stub.",
        "ring_reduce_scatter is right; crossing_bytes is not written yet",
        crossing_bytes="raise NotImplementedError",
    ),
    wrong(
        "Divides by zero for two ranks.",
        "wrong: ZeroDivisionError: ",
        ("if more_bytes == 0:", "if more_bytes < 0:"),
    ),
    wrong(
        "Takes the ring's bytes for S.",
        "crossing_bytes(4, 2e-05, 1e-09) is 80000; there a ring takes 0.00024 s, doubling 0.0002 s",
        ("math.log2(n) - 2 * (n - 1) / n", "math.log2(n) - 1"),
    ),
    wrong(
        "A size of its own for two ranks.",
        "crossing_bytes(2, 2e-05, 1e-09) is 0; with two ranks doubling never sends more",
        ("return math.inf", "return 0"),
    ),
    wrong(
        "The last step adds this rank's own chunk once more.",
        "are in it 2 times",
        (
            "for step in range(n - 1):",
            """
            mine = chunks[rank].clone()
            for step in range(n - 1):
            """,
        ),
        ("return chunks[rank]", "return chunks[rank] + mine"),
    ),
    wrong(
        "The right values without a ring.",
        "the sums are right, but they come from all_reduce; use single messages",
        ring_reduce_scatter="""
        dist.all_reduce(x)
        return chunks[rank]
        """,
    ),
    wrong(
        "A ring that passes the whole tensor on: right sums, n times the traffic.",
        "the sums are right, but 2 messages with 13,440 bytes were sent",
        ring_reduce_scatter="""
        total, passing = x.clone(), x
        for _ in range(n - 1):
            incoming = torch.empty_like(x)
            sendrecv(passing, right, incoming, left)
            total += incoming
            passing = incoming
        return total.tensor_split(n)[rank]
        """,
    ),
    wrong(
        "Passes chunks on without adding its own.",
        "in the first of them the numbers of rank 0 are missing",
        ("target += incoming", "target.copy_(incoming)"),
    ),
    wrong(
        "The collective does the work; messages that nobody needs look like a ring's.",
        "the sums are right, but they come from reduce_scatter",
        ring_reduce_scatter="""
        result = torch.empty_like(chunks[0])
        dist.reduce_scatter(result, list(chunks))
        for _ in range(n - 1):
            sendrecv(chunks[rank], right, torch.empty_like(result), left)
        return result
        """,
    ),
    wrong(
        "n - 2 steps: the sum that would be complete next lacks the numbers of some rank.",
        "sums differ; in the first of them the numbers of rank",
        ("range(n - 1", "range(n - 2"),
    ),
    wrong(
        "Returns the whole tensor.",
        "the result is (840,), expected one chunk of 280 elements",
        ("return chunks[rank]", "return x"),
    ),
    wrong(
        "Every rank waits until its message is taken, and none takes one.",
        "stuck: it waited 10 s for a message that did not come",
        (
            "sendrecv(outgoing, right, incoming, left)",
            """
            dist.send(outgoing, right)
            dist.recv(incoming, left)
            """,
        ),
    ),
    wrong(
        "Each chunk goes straight to the rank that needs it.",
        "a message went to another rank than the right neighbour",
        ring_reduce_scatter="""
        total = chunks[rank].clone()
        for distance in range(1, n):
            incoming = torch.empty_like(total)
            sendrecv(chunks[(rank + distance) % n], (rank + distance) % n, incoming, (rank - distance) % n)
            total += incoming
        return total
        """,
    ),
    wrong(
        "The first half of the ring all-reduce as it stands there: the ranks end with another chunk.",
        "returns chunk 1, complete; expected is chunk 0",
        (
            "(rank - step - 1) % n], chunks[(rank - step - 2) % n]",
            "(rank - step) % n], chunks[(rank - step - 1) % n]",
        ),
        ("return chunks[rank]", "return chunks[(rank + 1) % n]"),
    ),
    right(
        "Blocking calls only: even ranks send first, odd ranks and the last one receive first.",
        (
            "sendrecv(outgoing, right, incoming, left)",
            """
            if rank % 2 == 0 and rank < n - 1:
                dist.send(outgoing, right)
                dist.recv(incoming, left)
            else:
                dist.recv(incoming, left)
                dist.send(outgoing, right)
            """,
        ),
    ),
    right(
        "Never writes to x, and passes on one buffer that grows from rank to rank.",
        ring_reduce_scatter="""
        passing = chunks[(rank - 1) % n].clone()
        for step in range(2, n + 1):
            incoming = torch.empty_like(passing)
            receiving = dist.irecv(incoming, left)
            dist.send(passing, right)
            receiving.wait()
            passing = incoming + chunks[(rank - step) % n]
        return passing
        """,
    ),
]
