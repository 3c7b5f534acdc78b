"""Answers to exercise 03."""

from tests.planted import Right, Wrong, solved

SWAP = solved("03_exchange", "swap")
EXCHANGE = solved("03_exchange", "exchange")
LENGTHS = """
length = torch.tensor([len(outgoing)], device=outgoing.device)
length_there = torch.empty_like(length)
swap(length, right, length_there, left)
"""

ANSWERS = [
    Wrong(
        what="All ranks send first.",
        old=SWAP,
        new="""
        dist.send(outgoing, right)
        dist.recv(incoming, left)
        """,
        told="stuck: it waited 10 s for a message that did not come",
    ),
    Wrong(
        what="Starts to send, then receives: a cure on gloo alone.",
        old=SWAP,
        new="""
        work = dist.isend(outgoing, right)
        dist.recv(incoming, left)
        work.wait()
        """,
        told="the result is right on gloo; replayed by nccl's rules, it hangs: rank 0 in send to rank 1",
    ),
    Wrong(
        what="Receives from whoever comes.",
        old=SWAP,
        new="""
        work = dist.isend(outgoing, right)
        dist.recv(incoming)
        work.wait()
        """,
        told="replayed by nccl's rules, it refuses: a receive from any rank",
    ),
    Wrong(
        what="Takes it that all tensors are as long as its own.",
        old=EXCHANGE,
        new="""
        incoming = torch.empty_like(outgoing)
        swap(outgoing, right, incoming, left)
        """,
        told="SIGABRT ended the process",
    ),
    Wrong(
        what="Asks all ranks for their lengths.",
        old=LENGTHS,
        new="""
        lengths = [None] * n
        dist.all_gather_object(lengths, len(outgoing))
        length_there = lengths[left]
        """,
        told="the result is right, but it comes from all_gather",
    ),
    Wrong(
        what="Pads to a length that is enough for the tensors of this check.",
        old=EXCHANGE,
        new="""
        padded, buffer = outgoing.new_zeros(100_000), outgoing.new_zeros(100_000)
        padded[0] = len(outgoing)
        padded[1 : 1 + len(outgoing)] = outgoing
        swap(padded, right, buffer, left)
        incoming = buffer[1 : 1 + int(buffer[0])]
        """,
        told="the result is right, but 400,000 bytes were sent for a tensor of 40,000",
    ),
    Wrong(
        what="Sends to the left.",
        old="right, left = (rank + 1) % n, (rank - 1) % n",
        new="right, left = (rank - 1) % n, (rank + 1) % n",
        told="the result is what rank 1 sent; the left neighbour is rank 2",
    ),
    Wrong(
        what="Makes the buffer of torch's default dtype.",
        old="outgoing.new_empty(int(length_there))",
        new="torch.empty(int(length_there))",
        told="the result is of torch.float32, expected torch.int32",
    ),
    Wrong(
        what="Reads the length before it is there.",
        old="        work.wait()",
        new="        pass",
        told="line 32: incoming = outgoing.new_empty(int(length_there))",
    ),
    Wrong(
        what="Waits for what comes, not for what goes.",
        old="""
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        """,
        new="""
        works = dist.batch_isend_irecv(operations)
        swap.__dict__.setdefault("kept", []).extend(works)
        works[1].wait()
        """,
        told="sent: it begins with 0",
    ),
    Wrong(
        what="All is done in exchange, nothing in swap.",
        old=(SWAP, EXCHANGE),
        new=(
            "raise NotImplementedError",
            """
            length = torch.tensor([len(outgoing)], device=outgoing.device)
            length_there = torch.empty_like(length)
            for mine, theirs in ((length, length_there), (outgoing, None)):
                theirs = outgoing.new_empty(int(length_there)) if theirs is None else theirs
                operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, theirs, left)]
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
            incoming = theirs
            """,
        ),
        told="exchange is right; swap is not written yet",
    ),
    Right(
        what="Every second rank receives first, with tags that agree with the order.",
        old=SWAP,
        new="""
        if dist.get_rank() % 2:
            dist.recv(incoming, left, tag=7)
            dist.send(outgoing, right, tag=7)
        else:
            dist.send(outgoing, right, tag=7)
            dist.recv(incoming, left, tag=7)
        """,
    ),
]
