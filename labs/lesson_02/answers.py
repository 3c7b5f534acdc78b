"""Answers to exercise 02."""

from tests.planted import Right, Wrong, solved

SET = "store.set(me, address)"
WAIT = """
try:
    store.wait(names, timeout)
except dist.DistStoreError:
    missing = [name for name in names if not store.check([name])]
    if missing:
        raise TimeoutError(f"still missing: {', '.join(missing)}") from None
"""
RETURN = """
by_rank = sorted(names)
return by_rank.index(me), [store.get(name).decode() for name in by_rank]
"""
MEET = solved("02_meet", "meet")

ANSWERS = [
    Wrong(
        what="Knows that somebody is missing, not who.",
        old=" if not store.check([name])",
        new="",
        told="the error names gus, who came",
    ),
    Wrong(
        what="Takes those who are there.",
        old=(WAIT, "in by_rank]"),
        new=("", "in by_rank if store.check([name])]"),
        told="went on before gus had come",
    ),
    Wrong(
        what="A store returns bytes.",
        old=".decode()",
        new="",
        told="is a bytes, expected a str",
    ),
    Wrong(
        what="Ranks by arrival, addresses by name.",
        old=(SET, "by_rank.index(me)"),
        new=(
            """
            rank = store.add("arrived", 1) - 1
            store.set(me, address)
            """,
            "rank",
        ),
        told="but its address stands in another place",
    ),
    Wrong(
        what="Stops at the first name that is missing.",
        old=WAIT,
        new="""
        for name in sorted(names):
            try:
                store.wait([name], timeout)
            except dist.DistStoreError:
                raise TimeoutError(f"{name} is missing") from None
        """,
        told="did not come, but the error does not say so",
    ),
    Wrong(
        what="Gives each name the whole timeout, and asks who is missing at the first that does not come.",
        old=WAIT,
        new="""
        for name in names:
            try:
                store.wait([name], timeout)
            except dist.DistStoreError:
                missing = [name for name in names if not store.check([name])]
                raise TimeoutError(", ".join(missing)) from None
        """,
        told="meet was still waiting; its timeout",
    ),
    Wrong(
        what="Looks by a short wait, and takes the first rank that is free.",
        old=(SET, RETURN),
        new=(
            """
            rank = 0
            while True:
                try:
                    store.wait([f"{rank}"], timedelta(milliseconds=50))
                except dist.DistStoreError:
                    break
                rank += 1
            store.set(f"{rank}", address)
            store.set(me, "here")
            """,
            'return rank, [store.get(f"{r}").decode() for r in range(len(names))]',
        ),
        told="if two processes can take one rank",
    ),
    Wrong(
        what="The store's own error, which names keys and no names.",
        old=WAIT,
        new="store.wait(names, timeout)",
        told="12 did not come, and meet raised DistStoreError; expected is TimeoutError",
    ),
    Wrong(
        what="Reads the next free rank, then writes the one after it; another process may read in between.",
        old=(SET, RETURN),
        new=(
            """
            if me == min(names):
                store.set("next", "0")
            rank = int(store.get("next"))
            store.set("next", str(rank + 1))
            store.set(me, f"{rank} {address}")
            """,
            """
            pairs = sorted(store.get(name).decode().split() for name in names)
            return rank, [place for _, place in pairs]
            """,
        ),
        told="3 processes took the ranks [0, 0, ",
    ),
    Right(
        what="Looks every few milliseconds until its own deadline, under keys of its own.",
        old=MEET,
        new="""
        corner = dist.PrefixStore("meeting", store)
        corner.set(me, address)
        deadline = time.monotonic() + timeout.total_seconds()
        missing = set(names)
        while missing:
            missing = {name for name in missing if not corner.check([name])}
            if missing and time.monotonic() > deadline:
                raise TimeoutError("missing: " + " and ".join(sorted(missing)))
            time.sleep(0.01)
        order = sorted(names, reverse=True)
        addresses = tuple(corner.get(name).decode() for name in order)
        return order.index(me), addresses
        """,
        below="import time",
    ),
]
