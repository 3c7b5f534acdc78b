"""Answers to exercise 02; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

SET = "store.set(me, address)"
WAIT = """
try:
    store.wait(names, timeout)
except dist.DistStoreError:
    missing = [name for name in names if not store.check([name])]
    raise TimeoutError(f"still missing: {', '.join(missing)}") from None
"""
RETURN = """
by_rank = sorted(names)
return by_rank.index(me), [store.get(name).decode() for name in by_rank]
"""

ANSWERS = [
    wrong(
        "Knows that somebody is missing, not who.",
        "the error names gus, who came",
        (" if not store.check([name])", ""),
    ),
    wrong(
        "store.add returns 1 to the first.",
        "3 processes took the ranks [1, 2, 3], expected [0, 1, 2]",
        (
            SET,
            """
            rank = store.add("arrived", 1)
            store.set(f"{rank}", address)
            store.set(me, "here")
            """,
        ),
        (RETURN, 'return rank, [store.get(f"{r}").decode() for r in range(1, len(names) + 1)]'),
    ),
    wrong(
        "Takes those who are there.",
        "went on before gus had come",
        (WAIT, ""),
        ("in by_rank]", "in by_rank if store.check([name])]"),
    ),
    wrong(
        "A store returns bytes.",
        "is a bytes, expected a str",
        (".decode()", ""),
    ),
    wrong(
        "Takes the first rank that is free; but another process may look in between.",
        "all came, but meet raised DistStoreError: wait timeout after",
        (
            SET,
            """
            rank = 0
            while store.check([f"{rank}"]):
                rank += 1
            store.set(f"{rank}", address)
            store.set(me, "here")
            """,
        ),
        (RETURN, 'return rank, [store.get(f"{r}").decode() for r in range(len(names))]'),
    ),
    wrong(
        "Ranks by arrival, addresses by name.",
        "but its address stands in another place",
        (
            SET,
            """
            rank = store.add("arrived", 1) - 1
            store.set(me, address)
            """,
        ),
        ("by_rank.index(me)", "rank"),
    ),
    wrong(
        "Stops at the first name that is missing.",
        "did not come, but the error does not say so",
        (
            WAIT,
            """
            for name in sorted(names):
                try:
                    store.wait([name], timeout)
                except dist.DistStoreError:
                    raise TimeoutError(f"{name} is missing") from None
            """,
        ),
    ),
    wrong(
        "The place in a list that is different for each process.",
        "3 processes took the ranks [0, 0, 0], expected [0, 1, 2]",
        ("sorted(names)", "names"),
    ),
    wrong(
        "Gives each name the whole timeout; the twelve absent ones take twelve timeouts.",
        "after 5 s meet was still waiting",
        (
            WAIT,
            """
            missing = []
            for name in names:
                try:
                    store.wait([name], timeout)
                except dist.DistStoreError:
                    missing.append(name)
            if missing:
                raise TimeoutError(", ".join(missing))
            """,
        ),
    ),
    wrong(
        "get waits as well, but with the store's own timeout, and it names a key.",
        "12 did not come, and meet raised DistStoreError; expected is TimeoutError",
        (WAIT, ""),
    ),
    wrong(
        "Looks again and again, and never at the clock.",
        "after 5 s meet was still waiting; its timeout was 1 s",
        (
            WAIT,
            """
            while not store.check(names):
                time.sleep(0.05)
            """,
        ),
        below="import time",
    ),
    right(
        "Ranks by order of arrival; the names ask only who is missing.",
        (
            SET,
            """
            rank = store.add("arrived", 1) - 1
            store.set(f"rank {rank}", address)
            store.set(me, "here")
            """,
        ),
        ("store.wait(names, timeout)", 'store.wait([f"rank {r}" for r in range(len(names))], timeout)'),
        (RETURN, 'return rank, [store.get(f"rank {r}").decode() for r in range(len(names))]'),
    ),
    right(
        "Looks every few milliseconds until its own deadline, under keys of its own.",
        meet="""
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
    right(
        "Takes the first free rank by compare_set, which looks and writes in one step.",
        (
            SET,
            """
            rank = 0
            while store.compare_set(f"rank {rank}", "", address).decode() != address:
                rank += 1
            store.set(me, "here")
            """,
        ),
        (RETURN, 'return rank, [store.get(f"rank {r}").decode() for r in range(len(names))]'),
    ),
]
