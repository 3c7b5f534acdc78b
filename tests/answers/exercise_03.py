"""Answers to exercise 03."""

from tests.planted import Right, Wrong, solved

PRINT = "print(text, flush=True)"
RECEIVE = """
if rank > 0:
    dist.recv(token, rank - 1)
"""
SEND = """
if rank < n - 1:
    dist.send(token, rank + 1)
"""
PRINT_IN_TURN = solved("03_in_turn", "print_in_turn")

ANSWERS = [
    Wrong(
        what="Prints more than the text.",
        old="text, flush",
        new='f"{rank}: {text}", flush',
        told="'0: [rank 0] my turn' was printed; print text and nothing else",
    ),
    Wrong(
        what="The usual way, with a barrier for each rank.",
        old=PRINT_IN_TURN,
        new="""
        for turn in range(n):
            if turn == rank:
                print(text, flush=True)
            dist.barrier()
        """,
        told="a barrier was called; allowed are send and recv",
    ),
    Wrong(
        what="The last rank receives the token and stops.",
        old=(PRINT, SEND),
        new=(
            "",
            """
            if rank < n - 1:
                print(text, flush=True)
                dist.send(token, rank + 1)
            """,
        ),
        told="the line of rank 2 is missing",
    ),
    Wrong(
        what="Passes the token on first and prints then.",
        old=(PRINT, SEND),
        new=(
            "",
            """
            if rank < n - 1:
                dist.send(token, rank + 1)
            print(text, flush=True)
            """,
        ),
        told="rank 0 handed the token on before it had printed",
    ),
    Wrong(
        what="Everyone prints at once.",
        old=PRINT_IN_TURN,
        new=PRINT,
        told="the lines came in the order of ranks [0, 2, 1]; 0 messages were sent",
    ),
    Wrong(
        what="All send their texts to rank 0, which prints them in order.",
        old=PRINT_IN_TURN,
        new="""
        letters = torch.tensor(list(text.encode()))
        if rank > 0:
            dist.send(letters, 0)
            return
        print(text, flush=True)
        for other in range(1, n):
            dist.recv(letters, other)
            print(bytes(letters.tolist()).decode(), flush=True)
        """,
        told="rank 0 printed the line of rank 1; each rank prints its own",
    ),
    Wrong(
        what="Every rank waits for the token, and nobody has one to begin with.",
        old=RECEIVE,
        new="dist.recv(token, (rank - 1) % n)",
        told="stuck: it waited 10 s for a message that did not come",
    ),
    Wrong(
        what="Rank 0 tells everybody at once; who prints first is luck.",
        old=("rank - 1", SEND),
        new=(
            "0",
            """
            if rank == 0:
                for other in range(1, n):
                    dist.send(token, other)
            """,
        ),
        told="rank 0 sent to [1, 2], expected [1]",
    ),
    Wrong(
        what="The last rank hands the token back to rank 0.",
        old=SEND,
        new="""
        dist.send(token, (rank + 1) % n)
        if rank == 0:
            dist.recv(token, n - 1)
        """,
        told="the lines are in order, but 3 messages were sent; 2 are enough",
    ),
    Right(
        what="Writes to stdout itself, takes the token from anyone, and sends by isend and wait.",
        old=PRINT_IN_TURN,
        new=r"""
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
