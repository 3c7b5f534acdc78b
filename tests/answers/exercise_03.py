"""Answers to exercise 03; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

PRINT = "print(text, flush=True)"
RECEIVE = """
if rank > 0:
    dist.recv(token, rank - 1)
"""
SEND = """
if rank < n - 1:
    dist.send(token, rank + 1)
"""

ANSWERS = [
    wrong(
        "Prints more than the text.",
        "'0: [rank 0] my turn' was printed; print text and nothing else",
        ("text, flush", 'f"{rank}: {text}", flush'),
    ),
    wrong(
        "A barrier, imported by its own name.",
        "a barrier was called; allowed are",
        print_in_turn="""
        for turn in range(n):
            if turn == rank:
                print(text, flush=True)
            barrier()
        """,
        below="from torch.distributed import barrier",
    ),
    wrong(
        "The usual way, with a barrier for each rank.",
        "a barrier was called; allowed are send and recv",
        print_in_turn="""
        for turn in range(n):
            if turn == rank:
                print(text, flush=True)
            dist.barrier()
        """,
    ),
    wrong(
        "The last rank receives the token and stops.",
        "the line of rank 2 is missing",
        (PRINT, ""),
        (
            SEND,
            """
            if rank < n - 1:
                print(text, flush=True)
                dist.send(token, rank + 1)
            """,
        ),
    ),
    wrong(
        "Passes the token on first and prints then.",
        "rank 0 handed the token on before it had printed",
        (PRINT, ""),
        (
            SEND,
            """
            if rank < n - 1:
                dist.send(token, rank + 1)
            print(text, flush=True)
            """,
        ),
    ),
    wrong(
        "Everyone prints at once.",
        "the lines came in the order of ranks [0, 2, 1]; 0 messages were sent",
        print_in_turn=PRINT,
    ),
    wrong(
        "All send their texts to rank 0, which prints them in order.",
        "rank 0 printed the line of rank 1; each rank prints its own",
        print_in_turn="""
        letters = torch.tensor(list(text.encode()))
        if rank > 0:
            dist.send(letters, 0)
            return
        print(text, flush=True)
        for other in range(1, n):
            dist.recv(letters, other)
            print(bytes(letters.tolist()).decode(), flush=True)
        """,
    ),
    wrong(
        "All send their texts to rank 0, which prints them as they come.",
        "the lines came in the order of ranks [0, 2, 1]; 2 messages were sent",
        print_in_turn="""
        letters = torch.tensor(list(text.encode()))
        if rank > 0:
            dist.send(letters, 0)
            return
        print(text, flush=True)
        for _ in range(n - 1):
            dist.recv(letters)
            print(bytes(letters.tolist()).decode(), flush=True)
        """,
    ),
    wrong(
        "Every rank waits for the token, and nobody has one to begin with.",
        "stuck: it waited 10 s for a message that did not come",
        (RECEIVE, "dist.recv(token, (rank - 1) % n)"),
    ),
    wrong(
        "Rank 0 tells everybody at once; who prints first is luck.",
        "rank 0 sent to [1, 2], expected [1]",
        ("rank - 1", "0"),
        (
            SEND,
            """
            if rank == 0:
                for other in range(1, n):
                    dist.send(token, other)
            """,
        ),
    ),
    wrong(
        "Does not wait for the message to leave.",
        "stuck: it waited 10 s for a message",
        ("send(token", "isend(token"),
    ),
    wrong(
        "The last rank hands the token back to rank 0.",
        "the lines are in order, but 3 messages were sent; 2 are enough",
        (
            SEND,
            """
            dist.send(token, (rank + 1) % n)
            if rank == 0:
                dist.recv(token, n - 1)
            """,
        ),
    ),
    right(
        "Batches of one message, and a token of its own.",
        print_in_turn="""
        turn = torch.tensor([rank], device=token.device)
        if rank > 0:
            pass_on(dist.irecv, turn, rank - 1)
        print(text, flush=True)
        if rank < n - 1:
            pass_on(dist.isend, turn, rank + 1)
        """,
        below="""
        def pass_on(operation, token: torch.Tensor, peer: int) -> None:
            for work in dist.batch_isend_irecv([dist.P2POp(operation, token, peer)]):
                work.wait()
        """,
    ),
    right(
        "Writes to stdout itself, takes the token from anyone, and sends by isend and wait.",
        print_in_turn=r"""
        if rank:
            dist.recv(token)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        if rank + 1 != n:
            dist.isend(token, rank + 1, tag=0).wait()
        """,
        below="import sys",
    ),
]
